//! The parts of a request: its operation, its memory, its errors; and a device's description of
//! itself.

use std::fmt;

pub(crate) use buffer::write_copy;
pub use buffer::{AlignedBuf, Buffer, Payload};
pub(crate) use extents::FoundExtents;
pub use extents::{Extent, ExtentKind, Extents};
pub use pool::{BufferMemory, BufferPool};

mod buffer;
pub(crate) mod error;
mod extents;
pub(crate) mod geometry;
pub(crate) mod limits;
mod pool;
pub(crate) mod read_only;
pub(crate) mod table;

// The operation of a request, and its modifiers.

/// The operation of a request. Later versions may have more of them. So a driver has an arm for all
/// others, and gets none of those unless its geometry says that it knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// Append `len` bytes from `offset` to the request's buffers.
    Read,
    /// Store the request's bytes at `offset`.
    Write,
    /// Make every write that **completed** before this request was submitted survive a crash.
    Flush,
    /// The range's content is no longer needed; it may read as anything until written again.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
    /// Report which bytes of the range are allocated, and which read as zeroes:
    /// [`Request::put_extent`](crate::Request::put_extent).
    Extents,
    /// The range is about to be read: get it into a cache, if there is one. A hint.
    Prefetch,
}

impl Op {
    /// All operations.
    pub const ALL: [Op; 7] =
        [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes, Op::Extents, Op::Prefetch];

    /// Returns its place in [`Op::ALL`].
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Returns true for operations that change the device's content.
    pub const fn is_change(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }

    /// Returns true for operations that move bytes: reads and writes.
    pub const fn has_bytes(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write-zeroes",
            Op::Extents => "extents",
            Op::Prefetch => "prefetch",
        })
    }
}

/// Modifiers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Force unit access: this change itself is durable when the request completes.
    pub fua: bool,
    /// `WriteZeroes` only: the range must stay allocated (no hole may be punched).
    pub no_unmap: bool,
    /// `WriteZeroes` only: fail as [not supported](crate::IoErrorKind::NotSupported) rather than
    /// take as long as a write of zeroes.
    pub fast: bool,
}
