//! Cuts a stream of bytes into lines, of bounded length.

use super::plain::plain;
use std::borrow::Cow;

/// What of one line is kept. No kernel line is that long (`printk` cuts at 1024 bytes), and a line
/// of JSON seldom is; the rest of a longer one is passed over.
pub(crate) const LONGEST: usize = 16 * 1024;

/// One line as it was found.
pub(crate) struct Line<'a> {
    /// Its number; the first is 1.
    pub number: u64,
    /// Its [plain] text, without what ends a line.
    pub text: Cow<'a, str>,
    /// True when it ended in CR and LF, as on a serial console.
    pub crlf: bool,
    /// True when it was longer than [`LONGEST`], and so its end is missing.
    pub cut: bool,
}

/// Keeps what has been fed of a line that has not ended yet.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    part: Vec<u8>,
    cut: bool,
    number: u64,
}

impl Lines {
    /// Takes some bytes, however they are cut, and hands on each line that ends among them.
    pub(crate) fn feed(&mut self, bytes: &[u8], each: &mut impl FnMut(Line<'_>)) {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|&b| b == b'\n') {
            if self.part.is_empty() && at <= LONGEST {
                self.number += 1;
                each(line(self.number, &rest[..at], false));
            } else {
                self.keep(&rest[..at]);
                self.end(each);
            }
            rest = &rest[at + 1..];
        }
        self.keep(rest);
    }

    /// Hands on what stands behind the last line's end, if anything does.
    pub(crate) fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) {
        if !self.part.is_empty() {
            self.end(each);
        }
    }

    /// How many lines have ended so far.
    pub(crate) fn count(&self) -> u64 {
        self.number
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = LONGEST - self.part.len();
        self.cut |= bytes.len() > room;
        self.part.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end(&mut self, each: &mut impl FnMut(Line<'_>)) {
        self.number += 1;
        let cut = std::mem::take(&mut self.cut);
        each(line(self.number, &self.part, cut));
        self.part.clear();
    }
}

fn line(number: u64, bytes: &[u8], cut: bool) -> Line<'_> {
    let crlf = bytes.ends_with(b"\r");
    // A console that is written to twice adds a second CR; a dump of it may keep NULs.
    let end = bytes.iter().rposition(|&b| b != b'\r' && b != 0).map_or(0, |at| at + 1);
    let start = bytes[..end].iter().position(|&b| b != 0).unwrap_or(end);
    Line { number, text: plain(&bytes[start..end]), crlf, cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<(u64, String, bool, bool)> {
        let mut found = Vec::new();
        let mut each = |l: Line<'_>| found.push((l.number, l.text.into_owned(), l.crlf, l.cut));
        let mut reader = Lines::default();
        for part in parts {
            reader.feed(part, &mut each);
        }
        reader.finish(&mut each);
        found
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_are_cut() {
        let text = b"one\r\ntwo\n\nfour \xff\r\r\nfive";
        let whole = lines(&[text]);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(whole, lines(&bytes));
        assert_eq!(whole.len(), 5);
        assert_eq!(whole[0], (1, "one".into(), true, false));
        assert_eq!(whole[3], (4, "four \u{fffd}".into(), true, false));
        assert_eq!(whole[4], (5, "five".into(), false, false));
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let mut reader = Lines::default();
        for _ in 0..1000 {
            reader.feed(&[b'x'; 4096], &mut |_| panic!("no line has ended"));
            assert!(reader.part.capacity() <= 2 * LONGEST);
        }
        let mut found = Vec::new();
        reader.feed(b"\nnext\n", &mut |l: Line<'_>| found.push((l.number, l.text.len(), l.cut)));
        assert_eq!(found, [(1, LONGEST, true), (2, 4, false)]);
    }
}
