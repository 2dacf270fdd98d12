//! Logs of writes (`write_log`), read as `replay-log` of xfstests reads them, for images of
//! crashes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fastrand::Rng;

pub const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
const SECTOR: usize = 512;

/// Returns the number of entries in a log. An acknowledged write is in it.
pub fn count(log: &Path) -> usize {
    let mut super_block = [0; 24];
    let file = File::open(log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
    file.read_exact_at(&mut super_block, 0).expect("a log has a super block");
    word(&super_block, 2) as usize
}

fn word(bytes: &[u8], n: usize) -> u64 {
    u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("8 bytes"))
}

struct Entry {
    at: usize,
    len: usize,
    flags: u64,
    /// Offset of its data in the log.
    data: usize,
}

/// A log of writes.
pub struct Log {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Log {
    pub fn read(path: &Path) -> Log {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!((word(&bytes, 0), word(&bytes, 1)), (0x006a_7366_7773_6872, 1));
        let (mut entries, mut at) = (Vec::new(), SECTOR);
        for _ in 0..word(&bytes, 2) {
            let words = [0, 1, 2].map(|n| word(&bytes[at..], n));
            let [first, sectors, flags] = words;
            let (at_bytes, len) = (first as usize * SECTOR, sectors as usize * SECTOR);
            entries.push(Entry { at: at_bytes, len, flags, data: at + SECTOR });
            at += SECTOR + if flags & DISCARD == 0 { len } else { 0 };
        }
        assert!(at <= bytes.len(), "the log lacks data of its entries");
        Log { bytes, entries }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of entries up to each flush.
    pub fn flushes(&self) -> Vec<usize> {
        let flushes = self.entries.iter().enumerate().filter(|(_, entry)| entry.flags & FLUSH != 0);
        flushes.map(|(n, _)| n + 1).collect()
    }

    /// Applies a possible crash after `upto` entries to `image`, the contents when the log began.
    /// All entries up to the last flush survive, and a random choice of the rest, sector by sector.
    pub fn replay(&self, image: &mut [u8], upto: usize, chance: &mut Rng) {
        let flushed = self.flushes().into_iter().take_while(|n| *n <= upto).last().unwrap_or(0);
        for (n, entry) in self.entries[..upto].iter().enumerate() {
            if entry.flags & (MARK | FLUSH) != 0 {
                continue;
            }
            let durable = n < flushed || entry.flags & FUA != 0;
            // The crash leaves all of the entry, nothing, or a part.
            let fate = if durable { 0 } else { chance.u64(..3) };
            for from in (0..entry.len).step_by(SECTOR) {
                if fate == 1 || fate == 2 && chance.u64(..2) == 0 {
                    continue;
                }
                let to = &mut image[entry.at + from..][..SECTOR];
                match entry.flags & DISCARD {
                    0 => to.copy_from_slice(&self.bytes[entry.data + from..][..SECTOR]),
                    _ => to.fill(0),
                }
            }
        }
    }
}
