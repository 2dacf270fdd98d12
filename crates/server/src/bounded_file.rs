//! Files that a user names and that are read into memory. Each kind has a longest size, so a disk
//! that was named by mistake is refused instead of taken into memory.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::units;

/// The longest certificate or key, in bytes: bundles of all public authorities have a quarter of
/// it.
#[cfg(feature = "tls")]
pub(crate) const LONGEST_PEM: u64 = 1 << 20;

/// Why a file wasn't read.
#[derive(Debug)]
pub enum Unread {
    /// The system's reason.
    Io(io::Error),
    /// A pipe, a socket or a device, where a plain file is wanted.
    NotPlain,
    /// Longer than this many bytes.
    TooLong(u64),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Io(error) => error.fmt(f),
            Unread::NotPlain => f.write_str("it is not a plain file"),
            Unread::TooLong(most) => write!(f, "it has more than {}", units::size(*most)),
        }
    }
}

/// Reads a plain file of at most `most` bytes. Blocks on the disk, but never on a pipe whose other
/// end doesn't come.
pub(crate) fn read_plain(path: &Path, most: u64) -> Result<Vec<u8>, Unread> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(opened.map_err(|error| Unread::Io(error.into()))?);
    let meta = file.metadata().map_err(Unread::Io)?;
    match meta.is_file() {
        false => Err(Unread::NotPlain),
        true if meta.len() > most => Err(Unread::TooLong(most)),
        true => read(file, most),
    }
}

/// Reads a file of any kind, such as a pipe, of at most `most` bytes.
pub fn read_any(path: &Path, most: u64) -> Result<Vec<u8>, Unread> {
    read(File::open(path).map_err(Unread::Io)?, most)
}

/// Reads a source to its end, which has to come within `most` bytes.
pub fn read(source: impl Read, most: u64) -> Result<Vec<u8>, Unread> {
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes).map_err(Unread::Io)?;
    if bytes.len() as u64 > most { Err(Unread::TooLong(most)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_what_is_no_file_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, [7; 100]).unwrap();
        assert_eq!(read_plain(&path, 100).unwrap(), [7; 100]);
        assert!(matches!(read_plain(&path, 99), Err(Unread::TooLong(99))));
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        for other in [&fifo, folder.path(), Path::new("/dev/zero")] {
            assert!(matches!(read_plain(other, 100), Err(Unread::NotPlain)), "{other:?}");
        }
        assert!(matches!(read_any(Path::new("/dev/zero"), 100), Err(Unread::TooLong(100))));
        assert!(matches!(read_plain(&folder.path().join("y"), 1), Err(Unread::Io(_))));
        assert!(matches!(read(io::repeat(0), 100), Err(Unread::TooLong(100))));
    }
}
