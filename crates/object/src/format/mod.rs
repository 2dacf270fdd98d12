//! Content of the store, as bytes: the names and formats of objects, frames of blocks, compressed
//! and encrypted, and the map of all blocks. Nothing here waits or accesses the store.

mod batch;
mod codec;
mod frame;
mod map;
pub(crate) mod names;
mod objects;
pub(crate) mod seal;

pub(crate) use batch::{Batch, BuiltSegment, Chunk, SegmentBuilder};
pub(crate) use codec::Codec;
pub use codec::Compression;
pub(crate) use frame::{BlockSums, FrameAddress};
pub(crate) use map::Map;
pub use map::StoreSpace;
pub(crate) use map::{Segment, SegmentTotals};
pub use names::OpeningId;
pub(crate) use objects::{
    BLOCK, BlockPlace, Changes, Damaged, HEAD, Head, Kind, MapEntry, Opening, Origin,
    SnapshotRecord, WholeMap, Writer,
};
pub use seal::ObjectKey;
