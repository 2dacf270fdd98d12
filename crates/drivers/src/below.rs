//! What the drivers that stand on other devices have in common: handing a request on, and
//! what several of them can do together.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, Geometry, IoError, Started, Whole};

/// Why devices can't be put together into one.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackError(String);

impl StackError {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl From<IoError> for StackError {
    fn from(error: IoError) -> Self {
        Self::new(error.to_string())
    }
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StackError {}

/// Submits `rq` to `device`, at `offset` there; it completes as it does there, on that thread. Any
/// context.
pub(super) fn pass_on(device: &dyn BlockDevice, rq: Started, offset: u64) {
    let len = rq.len();
    device.submit(Whole::new(rq).part(0, len, offset));
}

/// What all these can do together: the strictest of each. `None` without any.
pub(super) fn combine<D: Borrow<Arc<dyn BlockDevice>>>(
    devices: impl IntoIterator<Item = D>,
) -> Option<Geometry> {
    devices.into_iter().map(|device| device.borrow().geometry()).reduce(|a, b| Geometry {
        size: a.size.min(b.size),
        block_size: a.block_size.max(b.block_size),
        preferred: a.preferred.max(b.preferred),
        physical_block: a.physical_block.max(b.physical_block),
        max_transfer: a.max_transfer.min(b.max_transfer),
        max_segments: a.max_segments.min(b.max_segments),
        max_segment_size: a.max_segment_size.min(b.max_segment_size),
        // Each child cuts at its own.
        chunk: 0,
        max_discard: a.max_discard.min(b.max_discard),
        max_write_zeroes: a.max_write_zeroes.min(b.max_write_zeroes),
        memory_alignment: a.memory_alignment.max(b.memory_alignment),
        read_only: a.read_only || b.read_only,
        can_flush: a.can_flush || b.can_flush,
        // A child with nothing to flush is durable anyway and takes `fua` for nothing.
        can_fua: (a.can_fua || !a.can_flush) && (b.can_fua || !b.can_flush),
        can_discard: a.can_discard && b.can_discard,
        can_write_zeroes: a.can_write_zeroes && b.can_write_zeroes,
        can_fast_zero: a.can_fast_zero && b.can_fast_zero,
        can_prefetch: a.can_prefetch && b.can_prefetch,
        rotational: a.rotational || b.rotational,
    })
}
