//! The record of checkpoints on its device: reading and writing its heads and pages. All of it
//! blocks.

use std::sync::Arc;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, Completed, IoError, Request};
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::{Countdown, Mutex};

use super::format::{FoundHead, FoundPage, Head, PAGE_BLOCKS, PIECE, decode_page, encode_page};
use crate::below::StackError;

/// Number of pages that are read at once.
const AT_ONCE: usize = 256;

/// Most extents of one question about holes.
const MOST_EXTENTS: u32 = 256;

/// The device of a record.
pub(super) struct Record {
    device: Arc<dyn BlockDevice>,
    /// A: the slot that is written first: not that of the newest head. Relaxed: set by the opener.
    first: AtomicU64,
}

/// Number in the last piece of a record, which no page has.
const TAIL: usize = u32::MAX as usize;

/// Returns the bytes of a record for a device of `size` bytes, in blocks of `1 << shift`.
pub(super) fn needed(size: u64, shift: u32) -> u64 {
    place(pages(size, shift) + 1)
}

/// Returns the number of pages of that record.
pub(super) fn pages(size: u64, shift: u32) -> usize {
    size.div_ceil(1 << shift).div_ceil(PAGE_BLOCKS as u64) as usize
}

/// Returns the place of page `n`.
fn place(n: usize) -> u64 {
    (2 + n as u64) * PIECE as u64
}

impl Record {
    pub(super) fn new(device: Arc<dyn BlockDevice>) -> Result<Self, StackError> {
        let geometry = device.geometry();
        if geometry.block_size as usize > PIECE || geometry.read_only {
            return Err(StackError::new(format!(
                "'{}' can't hold a record of checkpoints: it must be writable, in blocks of at \
                 most {PIECE} bytes",
                device.name()
            )));
        }
        Ok(Self { device, first: AtomicU64::new(0) })
    }

    /// Returns the record's size.
    pub(super) fn size(&self) -> u64 {
        self.device.geometry().size
    }

    /// Reads both heads; returns the newest one, or `None` for a record of zeroes, and whether one
    /// is damaged.
    pub(super) fn read_head(&self) -> Result<(Option<Head>, bool), StackError> {
        let mut newest: Option<Head> = None;
        let mut damaged = 0;
        for slot in 0..2 {
            let bytes = self.device.read_at(slot * PIECE as u64, PIECE)?;
            match Head::decode(&bytes) {
                FoundHead::Good(head) => {
                    let is_newer = newest.as_ref().is_none_or(|had| had.number < head.number);
                    if is_newer {
                        newest = Some(head);
                        self.first.store(1 - slot, Ordering::Relaxed);
                    }
                }
                FoundHead::Damaged => damaged += 1,
                FoundHead::Blank => {}
            }
        }
        if newest.is_none() && (damaged != 0 || !self.is_blank()?) {
            return Err(StackError::new(format!(
                "'{}' holds no record of checkpoints, or a damaged one. Remove it if nothing else \
                 needs it: a new record has no checkpoints, and the next backup is a full one",
                self.device.name()
            )));
        }
        Ok((newest, damaged != 0))
    }

    /// Returns true if all bytes of the record are zero. Holes aren't read.
    fn is_blank(&self) -> Result<bool, IoError> {
        let (mut at, size) = (0, self.size());
        while at < size {
            let found = self.device.extents_of(at, size - at, MOST_EXTENTS)?;
            for extent in found.iter() {
                let end = at + extent.len;
                while at < end {
                    let len = (end - at).min((AT_ONCE * PIECE) as u64);
                    if !extent.kind.is_zero()
                        && self.device.read_at(at, len as usize)?.iter().any(|byte| *byte != 0)
                    {
                        return Ok(false);
                    }
                    at += len;
                }
            }
        }
        Ok(true)
    }

    /// Returns true if the record ends behind this number of pages. If not, it was cut off.
    pub(super) fn has_tail(&self, id: u64, pages: usize) -> Result<bool, IoError> {
        let found = self.device.read_at(place(pages), PIECE)?;
        Ok(matches!(decode_page(id, TAIL, &found), FoundPage::Good(..)))
    }

    /// Writes the end of the record durably, behind this number of pages.
    pub(super) fn write_tail(&self, id: u64, pages: usize) -> Result<(), IoError> {
        self.write_durably(vec![(place(pages), encode_page(id, TAIL, 0, &[]))])
    }

    /// Reads pages 0 to `pages` - 1, in order.
    pub(super) fn read_pages(
        &self,
        id: u64,
        pages: usize,
        mut found: impl FnMut(usize, FoundPage),
    ) -> Result<(), IoError> {
        for first in (0..pages).step_by(AT_ONCE) {
            let count = AT_ONCE.min(pages - first);
            let bytes = self.device.read_at(place(first), count * PIECE)?;
            for (n, piece) in bytes.chunks_exact(PIECE).enumerate() {
                found(first + n, decode_page(id, first + n, piece));
            }
        }
        Ok(())
    }

    /// Writes both heads, one after the other, each durably. If that fails, the head may be there.
    pub(super) fn write_head(&self, head: &Head) -> Result<(), IoError> {
        let bytes = head.encode();
        let first = self.first.load(Ordering::Relaxed);
        for slot in [first, 1 - first] {
            self.write_durably(vec![(slot * PIECE as u64, bytes.clone())])?;
        }
        Ok(())
    }

    /// Writes pages durably, all at once: number, open groups, epochs. If that fails, any of them
    /// may be there, or be damaged.
    pub(super) fn write_pages(
        &self,
        id: u64,
        pages: impl Iterator<Item = (usize, u128, Vec<u16>)>,
    ) -> Result<(), IoError> {
        let piece = |(n, open, epochs): (usize, u128, Vec<u16>)| {
            (place(n), encode_page(id, n, open, &epochs))
        };
        self.write_durably(pages.map(piece).collect())
    }

    fn write_durably(&self, pieces: Vec<(u64, Vec<u8>)>) -> Result<(), IoError> {
        let writes = pieces.into_iter().map(|(at, bytes)| Request::write(at, bytes));
        for done in together(&*self.device, writes) {
            done.result?;
        }
        if self.device.geometry().can_flush { self.device.flush() } else { Ok(()) }
    }
}

/// Sends requests to a device, all at once, and waits for all of them. Returns their ends in
/// order. May block.
pub(super) fn together(
    device: &dyn BlockDevice,
    requests: impl Iterator<Item = Request>,
) -> Vec<Completed> {
    let requests: Vec<_> = requests.collect();
    let ended = Arc::new((Countdown::new(requests.len()), Mutex::new(Vec::new())));
    for (n, rq) in requests.into_iter().enumerate() {
        let theirs = Arc::clone(&ended);
        device.submit(rq.on_complete(move |done| {
            theirs.1.lock().push((n, done));
            theirs.0.done();
        }));
    }
    ended.0.wait();
    let mut ended = std::mem::take(&mut *ended.1.lock());
    ended.sort_by_key(|(n, _)| *n);
    ended.into_iter().map(|(_, done)| done).collect()
}
