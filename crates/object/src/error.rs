//! Why a volume wasn't opened.

use std::fmt;

/// Why a volume wasn't opened, as a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// The options can't be, or a text is none of what it is to be.
    InvalidInput,
    /// There is no volume, and no size for a new one.
    NoVolume,
    /// The store doesn't answer, or fails.
    Store,
    /// The store accepts a stale conditional write, so it can't keep two writers apart.
    Unfit,
    /// The key isn't the volume's, or one is missing, or too many. Nothing was written.
    Key,
    /// Something in the store isn't as it was written.
    Damaged,
    /// The [flush file](crate::ObjectOptions::flush_file) can't be used, has what can't be put into
    /// the store any more, or lacks what the last server flushed.
    FlushFile,
}

/// Why a volume wasn't opened, or why something for that is no good: what was asked, what was
/// found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError {
    kind: OpenErrorKind,
    /// Empty where it is about no volume.
    location: String,
    why: String,
}

impl OpenError {
    /// An error of the volume at a location.
    pub(crate) fn at(location: &str, kind: OpenErrorKind, why: String) -> Self {
        Self { kind, location: location.to_owned(), why }
    }

    /// An error of something that a volume is opened with.
    pub(crate) fn of(kind: OpenErrorKind, why: String) -> Self {
        Self { kind, location: String::new(), why }
    }

    /// Why, as a kind.
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
