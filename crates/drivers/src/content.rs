//! Whether a device is empty, without reading all of it.

use corewise_blockmq::{BlockDevice, BlockDeviceExt};

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

/// Like [`holds_data`], for the bytes before `size`.
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
fn is_zero(device: &dyn BlockDevice, from: u64, len: u64) -> Option<bool> {
    for at in (from..from + len).step_by(PIECE as usize) {
        let piece = device.read_at(at, PIECE.min(from + len - at) as usize).ok()?;
        if piece.iter().any(|byte| *byte != 0) {
            return Some(false);
        }
    }
    Some(true)
}
