//! Changes of a request's shape on the way to the driver: flushes, merges and splits.

use std::sync::Arc;

use corewise_sync::SpinLock;
use corewise_sync::inbox::Batch;

use crate::request::Op;
use crate::request::error::{IoError, IoErrorKind};
use crate::request::geometry::Geometry;
use crate::state::core::Core;
use crate::state::pending::Pending;
use crate::state::request::Request;
use crate::state::whole::{HeldRequest, PartDone, Whole};

// Flushes: one in the driver at a time, however many requests wait for it. If the driver can't make
// a change durable by itself, the change is made, and then flushed. Waits for flushes:
// `admission/flusher.rs`.

/// Returns true if a change with `fua` is made without, and then flushed.
pub(crate) fn emulates_fua(driver: &Geometry) -> bool {
    driver.can_flush && !driver.can_fua
}

/// Makes a request that is inside wait for a flush, which then ends it. Returns the hardware queue
/// that the caller then runs; `None` if a flush is in flight already.
pub(crate) fn wait_for_flush(pending: Box<Pending>) -> Option<usize> {
    let (core, slot) = (Arc::clone(&pending.core), pending.slot);
    let batch = core.flusher.ask(pending)?;
    send_flush(core, slot, batch)
}

/// Sends a flush for those in `batch`. It is a request of the queue's own, which isn't counted,
/// since they are.
fn send_flush(core: Arc<Core>, slot: usize, mut batch: Batch<Box<Pending>>) -> Option<usize> {
    // A queue that is gone isn't run any more.
    while core.is_dead() {
        for pending in batch {
            pending.end_now(Err(IoError::new(IoErrorKind::Gone)));
        }
        batch = core.flusher.end()?;
    }
    let theirs = Arc::clone(&core);
    // Each of them reports its failure, or its submitter does.
    let rq = Request::flush().quiet();
    let rq = rq.on_complete(move |done| flush_ended(theirs, slot, batch, done.result));
    core.push(core.pack(rq, slot).uncounted())
}

fn flush_ended(
    core: Arc<Core>,
    slot: usize,
    batch: Batch<Box<Pending>>,
    result: Result<(), IoError>,
) {
    match &result {
        Ok(()) => core.note_flush(),
        Err(error) => core.note_loss(Op::Flush, error),
    }
    for pending in batch {
        pending.end_now(result.clone());
    }
    if let Some(batch) = core.flusher.end() {
        if let Some(hctx) = send_flush(Arc::clone(&core), slot, batch) {
            core.hctx(hctx).visit(&core, slot, true);
        }
    }
}

/// Prepares a change that has to be durable: the queue sends a flush behind it.
pub(crate) fn flush_behind(pending: &mut Pending) {
    let rq = pending.rq_mut();
    if rq.op() != Op::Read && rq.take_fua() {
        rq.stay_alone();
        pending.post_flush = true;
    }
}

// Splitting: a request over the driver's limits goes to it in parts.
//
// The request itself stays inside, counted in, and is the [`Whole`] of its parts. The queue makes
// these itself and doesn't count them, so a freeze that waits for the request waits for all of
// them. At most [`AHEAD`] parts are in flight at a time, since a large discard may have millions:
// each that ends sends the next one. The kernel's `bio_split` does this work in the submitter's
// thread, which may wait there for memory and tags. Here the completer does it: the submitter has
// gone on.

/// Number of parts of a request that are in flight at once, at most.
const AHEAD: u32 = 32;

/// A request that is done in parts.
struct Split {
    // Dropped first: its drop ends the request, which may be what keeps the queue.
    whole: Whole,
    core: Arc<Core>,
    slot: usize,
    /// L: is the lock, for some nanoseconds; guards the start of the next part, `None` behind the
    /// last.
    next: SpinLock<Option<u64>>,
}

/// Starts a request that is inside; returns the hardware queue that the caller then runs.
pub(crate) fn split(pending: Box<Pending>) -> Option<usize> {
    let (core, slot) = (Arc::clone(&pending.core), pending.slot);
    let whole = Whole::new(HeldRequest::queued(pending));
    let split = Arc::new(Split { whole, core, slot, next: SpinLock::new(Some(0)) });
    let mut run = None;
    for _ in 0..AHEAD {
        let Some(hctx) = split.send_next() else { break };
        run = Some(hctx);
    }
    run
}

impl Split {
    /// Sends the next part; returns the hardware queue that the caller then runs. `None` behind the
    /// last one.
    fn send_next(self: &Arc<Self>) -> Option<usize> {
        let part = self.next_part()?;
        let pending = self.core.pack(part, self.slot).uncounted();
        self.core.push(pending)
    }

    fn next_part(self: &Arc<Self>) -> Option<Request> {
        let rq = self.whole.request();
        let mut next = self.next.lock();
        let at = (*next)?;
        let (offset, left) = (rq.offset() + at, rq.len() - at);
        let pieces = rq.segments_behind(at).map(|segment| segment.len() as u64);
        let first = self.core.limits.first(rq.op(), offset, left, pieces);
        let gone = self.core.is_dead();
        *next = first.filter(|&n| n != left && !gone).map(|n| at + n);
        if let Some(len) = first.filter(|_| !gone) {
            // The lock is held, so that bytes are claimed in their order.
            self.whole.claim(at, len);
        }
        drop(next);
        if gone {
            self.whole.fail_rest(at, IoError::new(IoErrorKind::Gone));
            return None;
        }
        let Some(len) = first else {
            let why = "a block lies in more pieces of memory than the driver takes";
            self.whole.fail_rest(at, IoError::with(IoErrorKind::InvalidInput, why));
            return None;
        };
        let split = Arc::clone(self);
        let mut part = self.whole.claimed_part(at, len, move |done| split.ended(done));
        part.stay_alone();
        Some(part)
    }

    fn ended(self: Arc<Self>, done: PartDone) {
        done.record();
        if let Some(hctx) = self.send_next() {
            self.core.hctx(hctx).visit(&self.core, self.slot, true);
        }
    }
}
