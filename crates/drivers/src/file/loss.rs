//! The loss of a device whose file another program truncates or unlinks.
//!
//! A write behind the end of a file makes it longer, and the gap reads as zeroes. The device would
//! be whole again, and the loss of its data would go unnoticed. No flag forbids a write that. So
//! the length is checked before each change (by a system call that only copies what the kernel has
//! in memory), and behind each sync. This is certain then: a change fails if it comes after the
//! file was shortened, and lies outside of the rest. Every flush fails from the first change or
//! flush on that finds the file short. Reads fail where the file has ended, and count as such a
//! find, whatever length the file has by then. This isn't: a change in flight at that very moment
//! may make the file longer. A flush finds that out, unless the change ended where the device ends.
//!
//! A file that has no name any more is whole for as long as it is open, and gone with the process:
//! so a flush, which promises more, fails too. The same check finds that.
//!
//! A file that was renamed, or whose path leads to another one, is whole, and what is flushed is
//! durable in it. So its flushes succeed. But the next server finds another file, or none: the
//! device's condition says so as long as it lasts. Finding that takes a lookup of the path, which
//! may wait: so only [`FileDriver::look`](super::FileDriver::look) does it.

use corewise_blockmq::{IoError, IoErrorKind, ReadOnlyLatch};
use corewise_sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::fault_reporter::FaultReporter;
use crate::file_guard::FileGuard;

/// The reaction of a file device to a truncation or an unlink of its file by another program. The
/// log gets one line, and every flush fails from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLoss {
    /// The rest of the file is read and changed as before.
    #[default]
    Error,
    /// The device becomes read-only: changes fail with
    /// [`ReadOnly`](corewise_blockmq::IoErrorKind::ReadOnly).
    ReadOnly,
}

/// The record of whether a file has kept its length and a name, at all checks so far.
pub(super) struct LossRecord {
    on_loss: OnLoss,
    /// A: true if it was found shorter. Set once, before the request that found it completes;
    /// Release and Acquire.
    short: AtomicBool,
    /// A: true if it was found without a name; as `short`.
    nameless: AtomicBool,
    /// Latch that is set with the first of them, if the file is only read then.
    read_only: ReadOnlyLatch,
}

impl LossRecord {
    pub(super) fn new(on_loss: OnLoss) -> Self {
        let [short, nameless] = [(); 2].map(|()| AtomicBool::new(false));
        let read_only = match on_loss {
            OnLoss::ReadOnly => ReadOnlyLatch::unset(),
            OnLoss::Error => ReadOnlyLatch::never(),
        };
        Self { on_loss, short, nameless, read_only }
    }

    /// Notes that a read found the file's end at or before byte `at`. The file has been short then,
    /// whatever it is now.
    pub(super) fn ended(&self, file: &FileGuard, reporter: &FaultReporter, at: u64) -> IoError {
        let there = self.look(file, reporter).unwrap_or(at);
        self.is_short(file, reporter, there.min(at));
        truncated(file, there.min(at))
    }

    /// Checks that a change up to `end` lies in the file, and may be made.
    pub(super) fn admits(
        &self,
        file: &FileGuard,
        reporter: &FaultReporter,
        end: u64,
    ) -> Result<(), IoError> {
        let there = self.look(file, reporter)?;
        if self.on_loss == OnLoss::ReadOnly {
            if let Err(error) = self.is_lost(file, there) {
                let why = format!("nothing is written to it any more: {error}");
                return Err(IoError::with(IoErrorKind::ReadOnly, why));
            }
        }
        if end <= there { Ok(()) } else { Err(truncated(file, there)) }
    }

    /// Checks that everything that was written may still be there, and stays.
    pub(super) fn is_whole(
        &self,
        file: &FileGuard,
        reporter: &FaultReporter,
    ) -> Result<(), IoError> {
        let there = self.look(file, reporter)?;
        self.is_lost(file, there)
    }

    /// Returns the loss found by now. `there`: the file's length.
    fn is_lost(&self, file: &FileGuard, there: u64) -> Result<(), IoError> {
        if self.short.load(Ordering::Acquire) {
            return Err(truncated(file, there));
        }
        if self.nameless.load(Ordering::Acquire) { Err(unlinked()) } else { Ok(()) }
    }

    /// Returns the latch that is set if it was found lost, and is only read for that.
    pub(super) fn read_only_latch(&self) -> ReadOnlyLatch {
        self.read_only.clone()
    }

    /// Returns the file's length.
    fn look(&self, file: &FileGuard, reporter: &FaultReporter) -> Result<u64, IoError> {
        let seen = file.look().map_err(|error| IoError::from_errno(error.raw_os_error()))?;
        if seen.is_short() {
            self.is_short(file, reporter, seen.length);
        }
        if file.is_unlinked(seen) && !self.nameless.swap(true, Ordering::AcqRel) {
            self.tell(reporter, &unlinked());
        }
        Ok(seen.length)
    }

    fn is_short(&self, file: &FileGuard, reporter: &FaultReporter, there: u64) {
        if !self.short.swap(true, Ordering::AcqRel) {
            self.tell(reporter, &truncated(file, there));
        }
    }

    fn tell(&self, reporter: &FaultReporter, error: &IoError) {
        self.read_only.set();
        let so = match self.on_loss {
            OnLoss::Error => "data is lost; every flush fails from now on",
            OnLoss::ReadOnly => {
                "data is lost; every flush fails from now on, and nothing is written any more"
            }
        };
        reporter.report_loss(error, so);
    }
}

fn truncated(file: &FileGuard, there: u64) -> IoError {
    let size = file.size();
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
    IoError::with(IoErrorKind::Io(libc::EIO), why)
}

fn unlinked() -> IoError {
    let why = "the file was unlinked while in use: its content goes when the server ends; copy it \
               through the server (or from /proc/PID/fd) first";
    IoError::with(IoErrorKind::Io(libc::EIO), why)
}

/// The record of the first failed sync of the file.
///
/// The kernel reports a failed write-back once for each open file, takes the pages for clean, and
/// lets the next `fdatasync` succeed although the bytes never reached the disk. So the failure is
/// remembered here, and from then on no flush succeeds: a retry must not report that the data is
/// safe.
#[derive(Default)]
pub(super) struct FlushDoubt {
    /// A: error number of the first sync that failed; 0 if none has. Set before that sync's request
    /// completes, so a caller that knows the failure can't flush with success. Release and Acquire.
    errno: AtomicU32,
}

impl FlushDoubt {
    /// Returns the error number of the first sync that failed; 0 if none has.
    pub(super) fn errno(&self) -> u32 {
        self.errno.load(Ordering::Acquire)
    }

    /// Records a sync that failed, and reports the first one.
    pub(super) fn failed(&self, reporter: &FaultReporter, error: &IoError) {
        let errno = error.errno() as u32;
        let (new, old) = (Ordering::AcqRel, Ordering::Acquire);
        if self.errno.compare_exchange(0, errno, new, old).is_ok() {
            reporter.report_loss(
                error,
                "data could not be made durable; every flush fails from now on",
            );
        }
    }
}
