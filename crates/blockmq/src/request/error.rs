//! The errors of requests.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use crate::request::Op;

/// The reason why a request failed, as a closed set that a protocol can translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoErrorKind {
    /// The device can't do this operation (it says so in its [`Geometry`](crate::Geometry)).
    NotSupported,
    /// A read or discard reaches beyond the end of the device.
    OutOfRange,
    /// A write reaches beyond the end of the device, or its backing store is full.
    NoSpace,
    /// The request changes a device that is read-only.
    ReadOnly,
    /// The request itself is malformed: unaligned, too long, or its payload doesn't fit.
    InvalidInput,
    /// The backing store failed with this `errno` (positive, as in `<errno.h>`).
    Io(i32),
    /// The request was cancelled before it ran.
    Cancelled,
    /// The device didn't answer in time.
    TimedOut,
    /// The device went away with the request unfinished, so whether it took effect is unknown.
    Gone,
}

impl IoErrorKind {
    /// Returns true if this error of a flush, or of a change with `fua`, may mean that earlier
    /// changes are lost: the device failed, and didn't refuse it. A file system may find late that
    /// there is no room, or that it can't write any more. A flush then reports that for the changes
    /// before it, a change for itself.
    pub fn may_be_a_loss(self, op: Op) -> bool {
        match self {
            IoErrorKind::Io(_) | IoErrorKind::TimedOut => true,
            IoErrorKind::NoSpace | IoErrorKind::ReadOnly => op == Op::Flush,
            _ => false,
        }
    }
}

/// Error of one request: its [`IoErrorKind`], and the request and the finding in words.
#[derive(Clone, Debug)]
pub struct IoError {
    kind: IoErrorKind,
    /// The words; boxed, since errors with words are rare, and each request has room for one.
    detail: Option<Box<Detail>>,
    /// The first failed byte; the range is empty if it isn't known.
    first: u64,
    end: u64,
}

#[derive(Clone, Debug, Default)]
struct Detail {
    words: Option<Cow<'static, str>>,
    /// True if it is in the log.
    logged: bool,
    /// The lowest device that failed a request with it.
    device: Option<Box<str>>,
}

impl PartialEq for IoError {
    fn eq(&self, other: &Self) -> bool {
        let what = |error: &Self| (error.kind, error.first, error.end);
        what(self) == what(other) && self.words() == other.words()
    }
}

impl Eq for IoError {}

impl IoError {
    /// Returns the words on the request and the finding, without the kind.
    pub fn words(&self) -> Option<&str> {
        self.detail.as_ref()?.words.as_deref()
    }

    /// Returns true if a queue has logged it, so that its words needn't be logged once more: see
    /// [`Request::quiet`](crate::Request::quiet).
    pub fn is_logged(&self) -> bool {
        self.detail.as_ref().is_some_and(|detail| detail.logged)
    }

    /// Marks it as logged, or left out of the log for once.
    pub(crate) fn logged(mut self) -> Self {
        self.detail.get_or_insert_default().logged = true;
        self
    }

    /// Notes that this device failed a request with it, unless one below has.
    pub(crate) fn of(mut self, device: &str) -> Self {
        self.detail.get_or_insert_default().device.get_or_insert_with(|| device.into());
        self
    }

    /// Returns the device that failed, if that is one below `asked`.
    pub fn device_below(&self, asked: &str) -> Option<&str> {
        self.detail.as_ref()?.device.as_deref().filter(|device| *device != asked)
    }

    /// Creates an error of this kind without further words.
    pub const fn new(kind: IoErrorKind) -> Self {
        Self { kind, detail: None, first: 0, end: 0 }
    }

    /// Creates an error of this kind that says what was asked and what was found.
    pub fn with(kind: IoErrorKind, detail: impl Into<Cow<'static, str>>) -> Self {
        let words = Some(detail.into());
        Self { detail: Some(Box::new(Detail { words, ..Detail::default() })), ..Self::new(kind) }
    }

    /// Creates the error of a request that needs a worker after the pools have ended: `Gone`.
    #[cold]
    pub fn workers_gone() -> Self {
        let why = "it needs a worker, but the worker pools were shut down; drain block queues before the \
             pools";
        Self::with(IoErrorKind::Gone, why)
    }

    /// Translates a system error: `ENOSPC`, `EROFS`, `EOPNOTSUPP` and their like get their own
    /// kind.
    pub fn from_errno(errno: i32) -> Self {
        Self::new(match errno {
            errno::ENOSPC | errno::EDQUOT => IoErrorKind::NoSpace,
            errno::EROFS => IoErrorKind::ReadOnly,
            errno::EOPNOTSUPP => IoErrorKind::NotSupported,
            errno::ECANCELED => IoErrorKind::Cancelled,
            errno::ETIMEDOUT => IoErrorKind::TimedOut,
            other => IoErrorKind::Io(other),
        })
    }

    /// Sets the bytes of the device that failed. The request's bytes before and behind them may
    /// have been done.
    #[must_use]
    pub fn at(mut self, range: Range<u64>) -> Self {
        (self.first, self.end) = (range.start, range.end);
        self
    }

    /// Returns the failed bytes of the device that was asked: for a completed request always known,
    /// unless its range is empty.
    pub fn range(&self) -> Option<Range<u64>> {
        (self.first < self.end).then_some(self.first..self.end)
    }

    /// Returns true if one of several requests that failed together may be the cause, and the
    /// others succeed without it.
    pub(crate) fn may_be_of_others(&self) -> bool {
        !matches!(self.kind, IoErrorKind::Gone | IoErrorKind::Cancelled)
    }

    /// Returns the kind of the error.
    pub const fn kind(&self) -> IoErrorKind {
        self.kind
    }

    /// Returns the nearest positive `errno`, for a client of a block protocol. `EPERM` for a
    /// read-only device (as NBD wants it), `ESHUTDOWN` for a device that is gone.
    pub const fn errno(&self) -> i32 {
        match self.kind {
            IoErrorKind::NotSupported => errno::EOPNOTSUPP,
            IoErrorKind::OutOfRange | IoErrorKind::InvalidInput => errno::EINVAL,
            IoErrorKind::NoSpace => errno::ENOSPC,
            IoErrorKind::ReadOnly => errno::EPERM,
            IoErrorKind::Io(errno) => errno,
            IoErrorKind::Cancelled => errno::ECANCELED,
            IoErrorKind::TimedOut => errno::ETIMEDOUT,
            IoErrorKind::Gone => errno::ESHUTDOWN,
        }
    }
}

impl From<std::io::Error> for IoError {
    fn from(error: std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(errno),
            None => Self::with(IoErrorKind::Io(errno::EIO), error.to_string()),
        }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            IoErrorKind::NotSupported => f.write_str("not supported by this device")?,
            IoErrorKind::OutOfRange => f.write_str("beyond the end of the device")?,
            IoErrorKind::NoSpace => f.write_str("no space left")?,
            IoErrorKind::ReadOnly => f.write_str("the device is read-only")?,
            IoErrorKind::InvalidInput => f.write_str("invalid request")?,
            IoErrorKind::Io(errno) => {
                write!(f, "I/O error: {}", std::io::Error::from_raw_os_error(errno))?
            }
            IoErrorKind::Cancelled => f.write_str("cancelled before it ran")?,
            IoErrorKind::TimedOut => f.write_str("the device didn't answer in time")?,
            IoErrorKind::Gone => f.write_str("the device was removed before the request ended")?,
        }
        if let Some(words) = self.words() {
            write!(f, ": {words}")?;
        }
        match self.range() {
            Some(range) => write!(f, " (bytes {} to {})", range.start, range.end - 1),
            None => Ok(()),
        }
    }
}

impl std::error::Error for IoError {}

/// The few Linux error numbers that this crate produces or translates.
pub(crate) mod errno {
    pub(crate) const EPERM: i32 = 1;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENOSPC: i32 = 28;
    pub(crate) const EROFS: i32 = 30;
    pub(crate) const EOPNOTSUPP: i32 = 95;
    pub(crate) const ESHUTDOWN: i32 = 108;
    pub(crate) const ETIMEDOUT: i32 = 110;
    pub(crate) const EDQUOT: i32 = 122;
    pub(crate) const ECANCELED: i32 = 125;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_and_a_read_only_one_are_told_apart_from_an_io_error() {
        assert_eq!(IoError::from_errno(28).kind(), IoErrorKind::NoSpace);
        assert_eq!(IoError::from_errno(30).kind(), IoErrorKind::ReadOnly);
        assert_eq!(IoError::from_errno(5).kind(), IoErrorKind::Io(5));
        assert_eq!(IoError::from_errno(5).errno(), 5);
    }

    #[test]
    fn the_message_carries_the_detail() {
        let error = IoError::with(IoErrorKind::OutOfRange, "read of 512 bytes at 4096");
        assert_eq!(error.to_string(), "beyond the end of the device: read of 512 bytes at 4096");
    }
}
