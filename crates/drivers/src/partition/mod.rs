//! `partition`: a range of another block device, by hand or as its GUID partition table says.

mod table;

use std::sync::Arc;

use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Geometry, Info, IoError, IoErrorKind, Op, Started, Whole,
};
use corewise_sync::atomic::{AtomicU64, Ordering};

pub use table::{PartitionEntry, PartitionTable};

use crate::below::{StackError, pass_on};

/// A part of a device. Its first byte is byte `start` there; what reaches beyond its end is refused
/// by the queue in front of it, so nothing gets at its neighbours.
///
/// A flush makes durable what the device below has, its neighbours' data too. Where one fails there, for whichever partition, changes of
/// all may be lost: the next flush of each fails.
#[derive(Clone)]
pub struct Partition {
    below: Arc<dyn BlockDevice>,
    start: u64,
    geometry: Geometry,
    /// A: how many [losses](BlockDevice::losses) below a flush here has told. Relaxed: the ends of flushes alone compare it, one at a time.
    told: Arc<AtomicU64>,
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
        let told = Arc::new(AtomicU64::new(below.losses()));
        Ok(Self { below, start, geometry: Geometry { size, chunk, ..whole }, told })
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
    fn info(&self) -> Info {
        let over = Info::over("partition", &*self.below);
        Info { geometry: self.geometry, knows_extents: true, ..over }
    }

    fn is_outdated(&self) -> bool {
        self.below.is_outdated()
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        if rq.op() == Op::Flush {
            self.flush(rq);
        } else {
            let offset = self.start + rq.offset();
            pass_on(&*self.below, rq, offset);
        }
        Dispatch::Started
    }
}

impl Partition {
    /// The device below tells a loss once, to the first that flushes. One that asks while that flush is under way there comes behind it.
    fn flush(&self, rq: Started) {
        let (below, told) = (Arc::clone(&self.below), Arc::clone(&self.told));
        let whole = Whole::with(rq, move |rq, result| {
            if result.as_ref().is_err_and(|error| !error.kind().may_be_a_loss(Op::Flush)) {
                // It was refused, and has told nothing.
                return rq.complete(result);
            }
            let losses = below.losses();
            let is_told = told.swap(losses, Ordering::Relaxed) == losses;
            rq.complete(result.and_then(|()| if is_told { Ok(()) } else { Err(untold(&*below)) }));
        });
        self.below.submit(whole.part(0, 0, 0));
    }
}

fn untold(below: &dyn BlockDevice) -> IoError {
    let what = format!(
        "a flush of '{}' failed, which another partition there was told: changes here since its last flush that succeeded may be lost, too",
        below.name()
    );
    IoError::with(IoErrorKind::Io(libc::EIO), what)
}
