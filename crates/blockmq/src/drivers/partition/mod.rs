//! `partition`: a range of another block device, by hand or as its GUID partition table says.

mod table;

use std::sync::Arc;

pub use table::{PartitionEntry, PartitionTable};

use super::StackError;
use super::below;
use super::below::pass_on;
use crate::device::BlockDevice;
use crate::driver::{Dispatch, Driver, Started};
use crate::geometry::Geometry;

/// A part of a device. Its first byte is byte `start` there; what reaches beyond its end is refused
/// by the queue in front of it, so nothing gets at its neighbours.
///
/// A flush makes durable what the device below has, its neighbours' data too.
#[derive(Clone)]
pub struct Partition {
    below: Arc<dyn BlockDevice>,
    start: u64,
    geometry: Geometry,
}

impl Partition {
    /// The `size` bytes of `below` from byte `start` on.
    ///
    /// # Errors
    /// Where that is nothing, isn't in whole blocks of `below`, or reaches beyond its end.
    pub fn new(below: Arc<dyn BlockDevice>, start: u64, size: u64) -> Result<Self, StackError> {
        let whole = below.geometry();
        let block = u64::from(whole.block_size);
        let what = || format!("a partition of {size} bytes from byte {start} on");
        let fits = |bytes: u64| bytes.checked_rem(block) == Some(0);
        if size == 0 || !fits(start) || !fits(size) {
            return Err(StackError::new(format!(
                "{}: it must consist of whole blocks of {block} bytes, at least one",
                what()
            )));
        }
        if start.checked_add(size).is_none_or(|end| end > whole.size) {
            return Err(StackError::new(format!(
                "{}: '{}' ends at byte {}",
                what(),
                below.name(),
                whole.size
            )));
        }
        // Where the boundaries below aren't ours, the queue below cuts by itself.
        let chunk = if start % u64::from(whole.chunk.max(1)) == 0 { whole.chunk } else { 0 };
        Ok(Self { below, start, geometry: Geometry { size, chunk, ..whole } })
    }

    /// The partition that `entry` of a table of `below` describes.
    ///
    /// # Errors
    /// As [`Partition::new`].
    pub fn of_entry(
        below: Arc<dyn BlockDevice>,
        entry: &PartitionEntry,
    ) -> Result<Self, StackError> {
        Self::new(below, entry.start, entry.size)
    }
}

impl Driver for Partition {
    fn kind(&self) -> &'static str {
        "partition"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn hw_queues(&self) -> usize {
        usize::MAX
    }

    fn merges(&self) -> bool {
        false
    }

    fn knows_extents(&self) -> bool {
        true
    }

    fn has_become_read_only(&self) -> bool {
        below::has_become_read_only([&self.below])
    }

    fn poll(&self, _hctx: usize) -> Option<usize> {
        self.below.poll()
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        // A flush has no range, and its 0 means nothing below either.
        let offset = self.start + rq.offset();
        pass_on(&*self.below, rq, offset);
        Dispatch::Started
    }
}
