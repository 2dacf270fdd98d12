//! A device that has clients, and the state that they share.
//!
//! A change of a part of a block reads that block, changes it, and writes it. The end of each step
//! begins the next. Meanwhile other changes of the block [wait](crate::range_lock), whichever
//! client they come from.

use std::fmt;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, IoError, Op, Request, Whole};
use corewise_sync::atomic::{AtomicBool, Ordering};

use crate::blocks::around;
use crate::losses::Losses;
use crate::range_lock::{Blocks, RangeLocks};
use crate::turn::{PLACES, Turns};

/// A device and the state that all its clients share, whichever export and front end they use.
pub struct SharedDevice {
    device: Arc<dyn BlockDevice>,
    /// Size of the device's blocks in bytes, a power of two.
    block: u64,
    pub(crate) turns: Arc<Turns>,
    /// A: set if a client has changed something, so that an end needs a flush. Relaxed: it is set
    /// before the request reaches the device. It is read after the client has left, which takes a
    /// lock.
    changed: AtomicBool,
    pub(crate) locks: Arc<RangeLocks<Request>>,
    pub(crate) losses: Losses,
}

impl SharedDevice {
    /// Creates the state of a device that has no clients yet. A device has one such state: the
    /// clients of a second one wouldn't wait for those of the first.
    pub fn new(device: Arc<dyn BlockDevice>) -> Arc<SharedDevice> {
        let block = device.geometry().block_size.max(1).into();
        let turns = Arc::new(Turns::new(PLACES));
        let changed = AtomicBool::new(false);
        let (locks, losses) = (Arc::default(), Losses::default());
        Arc::new(SharedDevice { device, block, turns, changed, locks, losses })
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Returns the size of the device's blocks in bytes, a power of two.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Returns true if clients have changed anything.
    pub fn was_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Returns true if the range covers a block in part.
    pub fn is_unaligned(&self, offset: u64, len: u64) -> bool {
        (offset | len) & (self.block - 1) != 0
    }

    /// Returns the number of departed clients that don't know of each loss of the device.
    pub fn untold(&self) -> usize {
        self.losses.untold(self.device.losses())
    }

    /// Records that a client is about to change something.
    pub(crate) fn changes(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for SharedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedDevice").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

/// The entry of a change in the table. Dropping it begins the changes that waited for it.
struct ListedChange {
    shared: Arc<SharedDevice>,
    id: u64,
}

impl Drop for ListedChange {
    fn drop(&mut self) {
        for (id, rq) in self.shared.locks.leave(self.id) {
            begin(ListedChange { shared: Arc::clone(&self.shared), id }, rq);
        }
    }
}

/// Submits a change of a client that lists its changes. If the change has to wait for another one,
/// the end of that one submits it. A change of a part of a block reads the block, changes it, and
/// writes it. Never blocks.
pub fn submit_listed(shared: &Arc<SharedDevice>, rq: Request) {
    let blocks = around(rq.offset(), rq.len(), shared.block);
    let range = blocks.start / shared.block..=(blocks.end - 1) / shared.block;
    let exclusive = shared.is_unaligned(rq.offset(), rq.len());
    if let (id, Some(rq)) = shared.locks.enter(Blocks { range, exclusive }, rq) {
        begin(ListedChange { shared: Arc::clone(shared), id }, rq);
    }
}

fn begin(change: ListedChange, rq: Request) {
    let shared = Arc::clone(&change.shared);
    if shared.is_unaligned(rq.offset(), rq.len()) {
        return shared.device.submit(read(change, rq));
    }
    let (len, offset) = (rq.len(), rq.offset());
    let whole = Whole::with(rq, move |rq, result| {
        drop(change);
        rq.complete(result);
    });
    shared.device.submit(whole.part(0, len, offset));
}

/// Returns the first step of a change of a part of a block: the request that reads the block, and
/// whose end changes it.
fn read(change: ListedChange, rq: Request) -> Request {
    let block = change.shared.block;
    let at = rq.offset() / block * block;
    Request::read(at, block as usize).quiet().on_complete(move |done| {
        let mut bytes = match done.into_data() {
            Ok(bytes) => bytes,
            Err(error) => return end(change, rq, Err(error)),
        };
        let from = (rq.offset() - at) as usize;
        let part = &mut bytes[from..from + rq.len() as usize];
        match rq.op() {
            Op::Write => _ = rq.copy_to(part),
            _ => part.fill(0),
        }
        let mut write = Request::write(at, bytes).quiet();
        if rq.flags().fua {
            write = write.fua();
        }
        let shared = Arc::clone(&change.shared);
        shared.device.submit(write.on_complete(move |done| end(change, rq, done.result)));
    })
}

fn end(change: ListedChange, rq: Request, result: Result<(), IoError>) {
    drop(change);
    rq.complete(result);
}
