//! The format of a backup: a header, records of data and zeroes with checksums, and an end. Pure.
//!
//! ```text
//! 0    a header of 512 bytes: size, device, checkpoint, and the checkpoint that it builds on
//! 512  records in the order of the device: a head of 32 bytes, and the data
//!      an end: a head with the number of records and the bytes of data
//! ```

use std::io::{self, Read};

/// Bytes of a header.
pub(super) const HEADER: usize = 512;
/// Bytes of the head of a record.
pub(super) const HEAD: usize = 32;
/// Most bytes of data in one record.
pub(super) const MOST_DATA: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"cwbackp1";
const RECORD: &[u8; 4] = b"cwbr";
/// Bytes of a name, zeroes behind it included.
const NAME: usize = 72;

/// A checkpoint: names may be used again, so it has its time too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) name: String,
    /// Seconds since 1970.
    pub(super) taken: u64,
}

/// The content of a backup, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of the device.
    pub(super) size: u64,
    pub(super) device: String,
    /// Checkpoint whose content the backup has.
    pub(super) checkpoint: Point,
    /// Checkpoint since which it has the changes; `None`: it has everything.
    pub(super) since: Option<Point>,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Bytes from an offset on.
    Data(u64, Vec<u8>),
    /// Zeroes from an offset on: how many.
    Zeroes(u64, u64),
    /// The end: the number of records before it, and the bytes of their data.
    End(u64, u64),
}

/// The reason why a backup can't be read on.
#[derive(Debug)]
pub(super) enum BadBackup {
    /// The bytes end before the backup does.
    Truncated,
    /// The bytes are not those that were written, or never were a backup.
    Damaged(String),
    Io(io::Error),
}

impl std::fmt::Display for BadBackup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BadBackup::Truncated => f.write_str("the backup is incomplete"),
            BadBackup::Damaged(why) => write!(f, "the backup is damaged: {why}"),
            BadBackup::Io(error) => error.fmt(f),
        }
    }
}

fn read(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), BadBackup> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => BadBackup::Truncated,
        _ => BadBackup::Io(error),
    })
}

fn damaged<T>(why: impl Into<String>) -> Result<T, BadBackup> {
    Err(BadBackup::Damaged(why.into()))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]))
}

fn name(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

impl Header {
    /// Encodes the header.
    ///
    /// # Panics
    /// If a name has more than 71 bytes: devices and checkpoints have shorter ones.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        let none = Point::default();
        let since = self.since.as_ref().unwrap_or(&none);
        put(0, MAGIC);
        put(16, &self.size.to_le_bytes());
        put(24, &self.checkpoint.taken.to_le_bytes());
        put(32, &since.taken.to_le_bytes());
        put(40, &[u8::from(self.since.is_some())]);
        for (n, name) in [&self.device, &self.checkpoint.name, &since.name].into_iter().enumerate()
        {
            assert!(name.len() < NAME, "a name of {} bytes", name.len());
            put(48 + n * NAME, name.as_bytes());
        }
        let checksum = crc32fast::hash(&bytes);
        bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header.
    pub(super) fn read(from: &mut impl Read) -> Result<Header, BadBackup> {
        let mut bytes = [0; HEADER];
        read(from, &mut bytes)?;
        if !bytes.starts_with(MAGIC) {
            return damaged("it doesn't begin as one");
        }
        let found: [u8; 4] = std::array::from_fn(|n| bytes[8 + n]);
        bytes[8..12].fill(0);
        if crc32fast::hash(&bytes) != u32::from_le_bytes(found) {
            return damaged("the checksum of its header is wrong");
        }
        let name = |n: usize| name(&bytes[48 + n * NAME..][..NAME]);
        let (Some(device), Some(checkpoint), Some(since)) = (name(0), name(1), name(2)) else {
            return damaged("a name in its header is no text");
        };
        let point = |name, at| Point { name, taken: long(&bytes, at) };
        let since = (bytes[40] != 0).then(|| point(since, 32));
        Ok(Header { size: long(&bytes, 16), device, checkpoint: point(checkpoint, 24), since })
    }
}

impl Record {
    /// Returns the number of bytes of the record in a backup.
    pub(super) fn len(&self) -> u64 {
        HEAD as u64 + if let Record::Data(_, data) = self { data.len() as u64 } else { 0 }
    }

    /// Encodes the head; the data follows it.
    pub(super) fn head(&self) -> [u8; HEAD] {
        let (kind, first, second, data) = match self {
            Record::Data(offset, data) => (1, *offset, data.len() as u64, &data[..]),
            Record::Zeroes(offset, len) => (2, *offset, *len, &[][..]),
            Record::End(records, bytes) => (3, *records, *bytes, &[][..]),
        };
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(RECORD);
        head[8] = kind;
        head[16..24].copy_from_slice(&first.to_le_bytes());
        head[24..32].copy_from_slice(&second.to_le_bytes());
        let checksum = checksum(&head, data);
        head[4..8].copy_from_slice(&checksum.to_le_bytes());
        head
    }

    /// Reads the next record of a backup of a device of `size` bytes, whose bytes up to `from` had
    /// theirs.
    pub(super) fn read(input: &mut impl Read, size: u64, from: u64) -> Result<Record, BadBackup> {
        let mut head = [0; HEAD];
        read(input, &mut head)?;
        let (first, second) = (long(&head, 16), long(&head, 24));
        let found: [u8; 4] = std::array::from_fn(|n| head[4 + n]);
        if !head.starts_with(RECORD) {
            return damaged("a record doesn't begin as one");
        }
        let is_inside = || {
            let end = first.checked_add(second);
            first >= from && second != 0 && end.is_some_and(|end| end <= size)
        };
        // The length is verified before the data is: it may be anything.
        let data = match head[8] {
            1 if is_inside() && second <= MOST_DATA as u64 => {
                let mut data = vec![0; second as usize];
                read(input, &mut data)?;
                data
            }
            2 if is_inside() => Vec::new(),
            3 => Vec::new(),
            _ => return damaged(format!("a record of {second} bytes at {first}")),
        };
        if checksum(&head, &data) != u32::from_le_bytes(found) {
            return damaged(format!("the checksum of the record at {first} is wrong"));
        }
        Ok(match head[8] {
            1 => Record::Data(first, data),
            2 => Record::Zeroes(first, second),
            _ => Record::End(first, second),
        })
    }
}

fn checksum(head: &[u8; HEAD], data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head[8..]);
    hasher.update(data);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let point = |name: &str, taken| Point { name: name.to_string(), taken };
        let (checkpoint, since) = (point("tuesday", 7), Some(point("monday", 1 << 40)));
        Header { size: 3 << 40, device: "d".repeat(64), checkpoint, since }
    }

    #[test]
    fn a_header_survives_its_bytes_and_any_damage_shows() {
        let bytes = header().encode();
        assert_eq!(Header::read(&mut &bytes[..]).unwrap(), header());
        for at in 0..HEADER {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert!(Header::read(&mut &bytes[..]).is_err(), "byte {at}");
        }
        let cut = Header::read(&mut &bytes[..500]);
        assert!(matches!(cut, Err(BadBackup::Truncated)));
    }

    #[test]
    fn a_record_survives_its_bytes_and_any_damage_shows() {
        let size = 1 << 30;
        for record in [
            Record::Data(4096, vec![7; 4096]),
            Record::Zeroes(1 << 20, 1 << 29),
            Record::End(9, 1 << 50),
        ] {
            let mut bytes = record.head().to_vec();
            if let Record::Data(_, data) = &record {
                bytes.extend(data);
            }
            assert_eq!(bytes.len() as u64, record.len());
            assert_eq!(Record::read(&mut &bytes[..], size, 0).unwrap(), record);
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1;
                assert!(Record::read(&mut &bytes[..], size, 0).is_err(), "byte {at}");
            }
            let cut = Record::read(&mut &bytes[..bytes.len() - 1], size, 0);
            assert!(matches!(cut, Err(BadBackup::Truncated)));
        }
    }

    #[test]
    fn a_record_outside_of_its_place_is_refused_before_its_data_is_read() {
        let refused = |record: Record, size, from| {
            let head = record.head();
            matches!(Record::read(&mut &head[..], size, from), Err(BadBackup::Damaged(_)))
        };
        assert!(refused(Record::Zeroes(0, 4097), 4096, 0));
        assert!(refused(Record::Zeroes(u64::MAX, 2), 4096, 0));
        assert!(refused(Record::Zeroes(0, 512), 4096, 512));
        assert!(refused(Record::Zeroes(512, 0), 4096, 0));
        assert!(refused(Record::Data(0, vec![0; MOST_DATA + 1]), 1 << 40, 0));
    }
}
