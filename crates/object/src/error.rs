//! Errors of opening a volume.

use std::fmt;

/// Kind of the reason why a volume wasn't opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// An option is invalid, or a text can't be parsed.
    InvalidInput,
    /// The volume doesn't exist, and there is no size for a new one.
    NoVolume,
    /// The store doesn't answer, or fails.
    Store,
    /// The store accepts a stale conditional write, so it can't keep two writers apart.
    Unfit,
    /// The key isn't the volume's, is missing, or isn't needed. Nothing was written.
    Key,
    /// An object in the store isn't as it was written.
    Damaged,
    /// The [flush file](crate::ObjectOptions::flush_file) can't be used, has changes that can't be
    /// put into the store any more, or lacks what the last server flushed.
    FlushFile,
}

/// The reason why a volume, or something that it needs, wasn't opened: what was asked, what was
/// found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError {
    kind: OpenErrorKind,
    /// Location of the volume. Empty: the error is about no volume.
    location: String,
    why: String,
}

impl OpenError {
    /// Creates an error of the volume at a location.
    pub(crate) fn at(location: &str, kind: OpenErrorKind, why: String) -> Self {
        Self { kind, location: location.to_owned(), why }
    }

    /// Creates an error of something that a volume is opened with.
    pub(crate) fn of(kind: OpenErrorKind, why: String) -> Self {
        Self { kind, location: String::new(), why }
    }

    /// Returns the kind of the reason.
    pub fn kind(&self) -> OpenErrorKind {
        self.kind
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.location {
            "" => f.write_str(&self.why),
            location => write!(f, "{location}: {}", self.why),
        }
    }
}

impl std::error::Error for OpenError {}
