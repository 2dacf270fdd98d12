//! Flushes: one in the driver at a time for however many wait, and a change that has to be durable by itself
//! where the driver can't do that: it is made, and then flushed. Waits for flushes: `admission/flusher.rs`.

use std::sync::Arc;

use corewise_sync::inbox::Batch;

use crate::request::Op;
use crate::request::error::{IoError, IoErrorKind};
use crate::request::geometry::Geometry;
use crate::state::core::Core;
use crate::state::pending::Pending;
use crate::state::request::Request;

/// Whether a change with `fua` is made without, and then flushed.
pub(crate) fn emulates_fua(driver: &Geometry) -> bool {
    driver.can_flush && !driver.can_fua
}

/// Has a request that is inside wait for a flush, which then ends it. Says which hardware queue the caller then
/// runs; `None` where a flush is under way already.
pub(crate) fn add(pending: Box<Pending>) -> Option<usize> {
    let (core, slot) = (Arc::clone(&pending.core), pending.slot);
    let batch = core.flusher.ask(pending)?;
    start(core, slot, batch)
}

/// Sends a flush for those in `batch`: a request of the queue's own, which isn't counted, since they are.
fn start(core: Arc<Core>, slot: usize, mut batch: Batch<Box<Pending>>) -> Option<usize> {
    // Nobody may run a queue any more that is gone.
    while core.is_dead() {
        for pending in batch {
            pending.end_now(Err(IoError::new(IoErrorKind::Gone)));
        }
        batch = core.flusher.end()?;
    }
    let theirs = Arc::clone(&core);
    // Each of them tells of its failure, or its submitter does.
    let rq = Request::flush().quiet();
    let rq = rq.on_complete(move |done| ended(theirs, slot, batch, done.result));
    core.push(core.pack(rq, slot).uncounted())
}

fn ended(core: Arc<Core>, slot: usize, batch: Batch<Box<Pending>>, result: Result<(), IoError>) {
    match &result {
        Ok(()) => core.note_flush(),
        Err(error) => core.note_loss(Op::Flush, error),
    }
    for pending in batch {
        pending.end_now(result.clone());
    }
    if let Some(batch) = core.flusher.end() {
        if let Some(hctx) = start(Arc::clone(&core), slot, batch) {
            core.hctx(hctx).visit(&core, slot, true);
        }
    }
}

/// Prepares a change that has to be durable: the flush behind it is the queue's business.
pub(crate) fn prepare(pending: &mut Pending) {
    let rq = pending.rq_mut();
    if rq.op() != Op::Read && rq.take_fua() {
        rq.stay_alone();
        pending.post_flush = true;
    }
}
