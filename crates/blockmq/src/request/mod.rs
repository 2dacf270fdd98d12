//! What a request is made of: what it asks for, its memory, its errors; and what a device says of
//! itself.

mod buffer;
pub(crate) mod error;
mod extents;
pub(crate) mod geometry;
pub(crate) mod inline_fn;
pub(crate) mod limits;
pub(crate) mod op;
mod pool;
pub(crate) mod read_only;
pub(crate) mod table;

pub(crate) use buffer::write_copy;
pub use buffer::{AlignedBuf, Buffer, Payload};
pub(crate) use extents::Found;
pub use extents::{Extent, ExtentKind, Extents};
pub use op::{Flags, Op};
pub use pool::BufferPool;
