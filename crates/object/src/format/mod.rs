//! What lies in the store, as bytes: the names and forms of objects, frames of blocks, compressed and encrypted, and the
//! map of all blocks that they make up. Nothing here waits or asks the store.

mod batch;
mod codec;
mod map;
pub(crate) mod names;
mod objects;
mod opening_id;
mod range_map;
pub(crate) mod seal;
mod segments;

pub(crate) use batch::{Batch, Built, Chunk, SegmentBuilder};
pub(crate) use codec::Codec;
pub use codec::Compression;
pub(crate) use map::Map;
pub(crate) use objects::{
    BLOCK, Changes, Damaged, Entry, HEAD, Head, Kind, Opening, Origin, Place, Spot, Taken, Whole,
    Writer,
};
pub use opening_id::OpeningId;
pub use seal::ObjectKey;
pub use segments::StoreSpace;
pub(crate) use segments::{Segment, Sum};
