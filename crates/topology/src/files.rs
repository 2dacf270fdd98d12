//! Reader of small files, of the kernel's or of a saved tree.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::error::TopologyError;

/// Largest number of bytes that are read of one file. The kernel's files are a page long, except
/// for `mountinfo`; a saved tree may hold anything.
const MAX_FILE: u64 = 4 << 20;

/// Returns a file's content, trimmed, or `None` if there is no such file.
pub(crate) fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    match read_regular(path, MAX_FILE) {
        // Some archives of sysfs trees have zero bytes at the end of files.
        Ok(text) => {
            Ok(Some(text.trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned()))
        }
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(TopologyError::Read { path: path.to_owned(), error }),
    }
}

/// Reads a regular file of at most `most` bytes. A tree from elsewhere may link to a pipe or a
/// device, where reading may never end.
pub(crate) fn read_regular(path: &Path, most: u64) -> io::Result<String> {
    let wrong = |what| io::Error::new(ErrorKind::InvalidData, what);
    if !fs::metadata(path)?.is_file() {
        return Err(wrong("it is not a regular file".to_owned()));
    }
    let mut text = String::new();
    fs::File::open(path)?.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(wrong(format!(
            "it is longer than {} MiB, too long for such a file",
            most >> 20
        )));
    }
    Ok(text)
}

pub(crate) fn is_absent(error: &io::Error) -> bool {
    // Linux's ENODEV and ENXIO: the CPU went away between the listing and the reading.
    const GONE: [i32; 2] = [19, 6];
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error.raw_os_error().is_some_and(|errno| GONE.contains(&errno))
}
