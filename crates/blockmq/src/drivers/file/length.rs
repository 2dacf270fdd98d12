//! What becomes of a device whose file somebody else makes shorter.
//!
//! A write behind the end of a file makes it longer, and what lies between reads as zeroes: so the device would be
//! whole again, and nobody would learn that its data is gone. There is no flag that forbids a write that. So the length
//! is looked at before each change (a system call that only copies what the kernel has in memory), and behind each
//! sync. This is sure then: a change that comes after the file was shortened, and doesn't lie in what is left, fails, and
//! so does every flush from the first of them that finds it short; reads fail where the file has ended, and count as
//! such a find, whatever length the file has by then. This isn't: a change that is under way at that very moment
//! may make the file longer. A flush finds that out, unless the change ended where the device ends.

use std::fs::File;

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustix::fs::{AtFlags, StatxFlags};

use crate::error::{IoError, IoErrorKind, errno};

/// The file's length. `fstat` would ask for its times too. Then the kernel notes that somebody has seen them (since Linux 6.13), and
/// the next write has to give it new ones, which on ext4 is a change of its journal, and can't be done without waiting.
fn length(file: &File) -> rustix::io::Result<u64> {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::SIZE) {
        Ok(found) => Ok(found.stx_size),
        // A policy that knows no `statx`, say.
        Err(_) => Ok(u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0)),
    }
}

/// The length that a file has to have.
pub(super) struct Length {
    /// A: it only grows. Relaxed: a request beyond the old one comes after the file has grown.
    size: AtomicU64,
    /// A: it was found shorter. Set once, before the request that found it completes; Release and Acquire.
    short: AtomicBool,
}

impl Length {
    pub(super) fn new(size: u64) -> Self {
        Self { size: AtomicU64::new(size), short: AtomicBool::new(false) }
    }

    /// The file has grown, and has to stay so.
    pub(super) fn grew(&self, size: u64) {
        self.size.fetch_max(size, Ordering::Relaxed);
    }

    /// A read found the file's end at or before byte `at`. It has been short then, whatever it is now.
    pub(super) fn ended(&self, file: &File, name: &str, at: u64) -> IoError {
        let there = self.look(file, name).unwrap_or(at);
        self.is_short(name, there.min(at));
        self.truncated(there.min(at))
    }

    /// Whether a change up to `end` lies in the file.
    pub(super) fn has_room(&self, file: &File, name: &str, end: u64) -> Result<(), IoError> {
        let there = self.look(file, name)?;
        if end <= there { Ok(()) } else { Err(self.truncated(there)) }
    }

    /// Whether everything that was written may still be there.
    pub(super) fn is_whole(&self, file: &File, name: &str) -> Result<(), IoError> {
        let there = self.look(file, name)?;
        if self.short.load(Ordering::Acquire) { Err(self.truncated(there)) } else { Ok(()) }
    }

    fn look(&self, file: &File, name: &str) -> Result<u64, IoError> {
        let there = length(file).map_err(|error| IoError::from_errno(error.raw_os_error()))?;
        if there < self.size.load(Ordering::Relaxed) {
            self.is_short(name, there);
        }
        Ok(there)
    }

    fn is_short(&self, name: &str, there: u64) {
        if !self.short.swap(true, Ordering::AcqRel) {
            let error = self.truncated(there);
            tracing::error!(file = name, %error, "data is lost; every flush fails from now on");
        }
    }

    fn truncated(&self, there: u64) -> IoError {
        let size = self.size.load(Ordering::Relaxed);
        let why = if there < size {
            format!(
                "the file was truncated while in use, from {size} bytes to {there}; stop the \
                 server, restore the size (truncate -s {size}), and check or restore the content"
            )
        } else {
            "the file was truncated while in use; it has its old size again, but not its content; \
             stop the server, and check or restore the content"
                .to_owned()
        };
        IoError::with(IoErrorKind::Io(errno::EIO), why)
    }
}
