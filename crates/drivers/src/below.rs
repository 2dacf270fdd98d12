//! Helpers of drivers over other devices: passing a request on, and the common abilities of several
//! devices.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, Geometry, IoError, Started, Whole};

/// The reason why devices can't be put together into one.
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

/// Returns the common abilities of these devices: the strictest of each. `None` without any.
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
        // A child with nothing to flush is durable anyway, and `fua` changes nothing there.
        can_fua: (a.can_fua || !a.can_flush) && (b.can_fua || !b.can_flush),
        can_discard: a.can_discard && b.can_discard,
        can_write_zeroes: a.can_write_zeroes && b.can_write_zeroes,
        can_fast_zero: a.can_fast_zero && b.can_fast_zero,
        can_prefetch: a.can_prefetch && b.can_prefetch,
        rotational: a.rotational || b.rotational,
    })
}

// A check whether a device is empty that doesn't read all of it.

/// Extents of one request, and the most requests. A device in more pieces is examined in part.
const AT_ONCE: u32 = 128;
const MOST_LOOKS: usize = 1024;

/// Bytes read to find one that isn't zero. Partition tables and file systems begin with their first
/// blocks.
const MOST_READ: u64 = 4 << 20;

/// Bytes read at once.
const PIECE: u64 = 256 << 10;

/// Returns whether a device holds a byte that isn't zero, or `None` if that isn't known.
///
/// It asks for the extents of the device and reads the first 4 MiB of those that may hold data. A
/// device that fails one of these requests is unknown. May block.
pub fn holds_data(device: &dyn BlockDevice) -> Option<bool> {
    holds_data_before(device, device.geometry().size)
}

/// Returns the same as [`holds_data`], for the bytes before `size`.
pub(super) fn holds_data_before(device: &dyn BlockDevice, size: u64) -> Option<bool> {
    let (mut at, mut to_read) = (0, MOST_READ);
    for _ in 0..MOST_LOOKS {
        if at >= size {
            return Some(false);
        }
        let extents = device.extents_of(at, size - at, AT_ONCE).ok()?;
        for extent in extents.iter() {
            if !extent.kind.is_zero() {
                let len = extent.len.min(to_read);
                to_read -= len;
                match is_zero(device, at, len) {
                    Some(true) if len == extent.len => {}
                    Some(false) => return Some(true),
                    _ => return None,
                }
            }
            at += extent.len;
        }
    }
    None
}

/// Returns whether these bytes are all zero, or `None` if they can't be read.
pub(super) fn is_zero(device: &dyn BlockDevice, from: u64, len: u64) -> Option<bool> {
    for at in (from..from + len).step_by(PIECE as usize) {
        let piece = device.read_at(at, PIECE.min(from + len - at) as usize).ok()?;
        if piece.iter().any(|byte| *byte != 0) {
            return Some(false);
        }
    }
    Some(true)
}
