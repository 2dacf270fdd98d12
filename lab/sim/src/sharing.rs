//! The places in the code that had each line last: the other end of each transfer.

use rustc_hash::FxHashMap;

use crate::report::Site;

/// What is known of a line.
#[derive(Debug, Clone, Copy)]
struct Last {
    /// The CPU that wrote to it last.
    cpu: u16,
    /// The words that it wrote since it got the line.
    words: u8,
    /// Its last write.
    written: Site,
    /// The last read by which another CPU got the line since.
    read: Option<Site>,
}

/// The lines that were ever written to.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    lines: FxHashMap<usize, Last>,
}

/// The 8-byte words of its line that an access touches; it doesn't reach beyond the line.
pub(crate) fn words(address: usize, bytes: usize) -> u8 {
    let first = (address & 63) / 8;
    let last = ((address & 63) + bytes.max(1) - 1).min(63) / 8;
    (0xff << first) & (0xff >> (7 - last))
}

impl Sharing {
    /// The place that had the line before `cpu` took it, and whether this is false sharing: the
    /// last writer had written none of these words since it got the line.
    pub(crate) fn holder(&self, line: usize, cpu: usize, words: u8) -> Option<(Site, bool)> {
        let last = self.lines.get(&line)?;
        if usize::from(last.cpu) == cpu {
            return Some((last.read?, false));
        }
        Some((last.written, last.words & words == 0))
    }

    /// `cpu` wrote to the line, which came from elsewhere for it.
    pub(crate) fn wrote(&mut self, line: usize, cpu: usize, words: u8, came: bool, site: Site) {
        let entry = self.lines.entry(line);
        let last = entry.or_insert(Last { cpu: cpu as u16, words: 0, written: site, read: None });
        if came || usize::from(last.cpu) != cpu {
            *last = Last { cpu: cpu as u16, words: 0, written: site, read: None };
        }
        last.words |= words;
        last.written = site;
    }

    /// Another CPU has got the line to read it.
    pub(crate) fn read(&mut self, line: usize, site: Site) {
        if let Some(last) = self.lines.get_mut(&line) {
            last.read = Some(site);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;

    #[test]
    fn words_are_those_that_the_bytes_lie_in() {
        assert_eq!(words(64, 8), 1);
        assert_eq!(words(64 + 60, 4), 0x80);
        assert_eq!(words(8, 16), 0b110);
        assert_eq!(words(0, 64), 0xff);
        assert_eq!(words(56, 64), 0x80);
    }

    #[test]
    fn false_sharing_is_told_from_words_that_were_written() {
        let (mut sharing, site) = (Sharing::default(), Site(Location::caller()));
        sharing.wrote(1, 0, words(64, 8), true, site);
        assert_eq!(sharing.holder(1, 1, words(64, 8)), Some((site, false)));
        assert_eq!(sharing.holder(1, 1, words(72, 8)), Some((site, true)));
        sharing.wrote(1, 0, words(72, 8), false, site);
        assert_eq!(sharing.holder(1, 1, words(72, 8)), Some((site, false)));
        assert_eq!(sharing.holder(1, 0, words(72, 8)), None, "it is here");
        sharing.read(1, site);
        assert_eq!(sharing.holder(1, 0, words(64, 8)), Some((site, false)), "the reader had it");
    }
}
