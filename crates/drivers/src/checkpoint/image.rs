//! The device as it was at a checkpoint: copies of the blocks that changed since, and the device
//! below for all others.

use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Extent, ExtentKind, Geometry, Info, IoError, IoErrorKind, Op,
    PartDone, Started, Whole,
};

use super::CheckpointState;

/// The device as it was at a checkpoint. It is read-only, and fails once the image has ended.
pub struct CheckpointImage {
    state: Arc<CheckpointState>,
    epoch: u16,
}

impl CheckpointImage {
    pub(super) fn new(state: Arc<CheckpointState>, epoch: u16) -> Self {
        Self { state, epoch }
    }

    fn read(&self, rq: Started) {
        let (offset, len) = (rq.offset(), rq.len());
        let whole = Whole::new(rq);
        let size = self.state.size();
        for block in self.state.map.of(offset, len) {
            let bytes = self.state.map.bytes(block..block + 1, size);
            let bytes = bytes.start.max(offset)..bytes.end.min(offset + len);
            let (at, part_len) = (bytes.start - offset, bytes.end - bytes.start);
            let read = ImageRead { state: Arc::clone(&self.state), epoch: self.epoch, block };
            if read.is_copied() {
                match read.place(&bytes) {
                    Ok((device, place)) => {
                        let then = move |done| read.end(done);
                        device.submit(whole.part_with(at, part_len, place, then));
                    }
                    Err(error) => {
                        // The part is never sent: its end fails the whole.
                        let part = whole.part_with(at, part_len, 0, move |done| done.record());
                        part.complete(Err(error));
                        return;
                    }
                }
            } else {
                let below = Arc::clone(&self.state.below);
                let start = bytes.start;
                let then = move |done| read.end_below(done, bytes);
                below.submit(whole.part_with(at, part_len, start, then));
            }
        }
    }

    /// Answers which bytes are zero: what the device below says where nothing has changed.
    fn extents(&self, rq: Started) {
        let (offset, len) = (rq.offset(), rq.len());
        let (state, epoch) = (Arc::clone(&self.state), self.epoch);
        let below = Arc::clone(&state.below);
        let whole = Whole::with(rq, move |mut rq, result| {
            let result = result.and_then(|()| state.copies()?.check(epoch));
            let found: Vec<Extent> =
                rq.extents().map(|all| all.iter().collect()).unwrap_or_default();
            rq.start_over();
            let mut at = offset;
            for extent in found {
                let end = at + extent.len;
                while at < end {
                    let blocks = state.map.of(at, end - at);
                    // This comes after the answer: what hasn't changed by now hadn't then.
                    let (until, changed) = state.map.stretch(blocks.start, blocks.end, epoch);
                    let until = state.map.bytes(0..until, state.size()).end.min(end);
                    let kind = if changed { ExtentKind::Data } else { extent.kind };
                    if !rq.put_extent(Extent { len: until - at, kind }) {
                        break;
                    }
                    at = until;
                }
                at = end;
            }
            rq.complete(result);
        });
        below.submit(whole.part(0, len, offset));
    }
}

/// A read of one block of an image.
struct ImageRead {
    state: Arc<CheckpointState>,
    epoch: u16,
    block: usize,
}

impl ImageRead {
    fn is_copied(&self) -> bool {
        self.state.map.has_changed(self.block, self.epoch)
    }

    /// Returns the device and the place of these bytes of the copied block.
    fn place(&self, bytes: &Range<u64>) -> Result<(Arc<dyn BlockDevice>, u64), IoError> {
        let start = self.state.map.bytes(self.block..self.block + 1, self.state.size()).start;
        let (device, place) = self.state.copies()?.place(self.epoch, self.block)?;
        Ok((Arc::clone(device), place + bytes.start - start))
    }

    /// Ends a read: the image may have ended, and a slot may have another block.
    fn end(self, done: PartDone) {
        match self.state.copies().and_then(|copies| copies.check(self.epoch)) {
            Ok(()) => done.record(),
            Err(error) => done.fail(error),
        }
    }

    /// Ends a read of the device below: if the block has changed meanwhile, its copy counts.
    fn end_below(self, done: PartDone, bytes: Range<u64>) {
        if !self.is_copied() {
            return self.end(done);
        }
        match self.place(&bytes) {
            Ok((device, place)) => {
                let again = done.again_with(place, move |done| self.end(done));
                device.submit(again);
            }
            Err(error) => done.fail(error),
        }
    }
}

impl Driver for CheckpointImage {
    fn info(&self) -> Info {
        let over = Info::over("checkpoint image", &*self.state.below);
        let size = self.state.size();
        let geometry = Geometry { size, read_only: true, can_prefetch: false, ..over.geometry };
        Info { geometry, knows_extents: true, ..over }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        match rq.op() {
            Op::Read => self.read(rq),
            Op::Extents => self.extents(rq),
            Op::Flush => rq.complete(Ok(())),
            _ => rq.complete(Err(IoError::new(IoErrorKind::ReadOnly))),
        }
        Dispatch::Started
    }
}
