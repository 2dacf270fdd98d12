//! Splitting: a request over the driver's limits goes to it in parts.
//!
//! The request itself stays inside, counted in, and is the [`Whole`] of its parts; those are of the queue's own
//! making and not counted, so that a freeze waits for all of them by waiting for the one. Not more than
//! [`AHEAD`] parts are under way at a time, since a large discard may have millions: each that ends sends the
//! next one. The work that the kernel's `bio_split` does in the submitter's thread, which may wait there for memory and
//! tags, is done here by the completer: the submitter has gone on.

use std::sync::Arc;

use corewise_sync::SpinLock;

use crate::request::error::{IoError, IoErrorKind};
use crate::state::core::Core;
use crate::state::pending::Pending;
use crate::state::request::Request;
use crate::state::whole::{Held, PartDone, Whole};

/// Parts of a request that are under way at once, at most.
const AHEAD: u32 = 32;

/// A request that is done in parts.
struct Split {
    // Dropped first: it ends the request, which may be what keeps the queue.
    whole: Whole,
    core: Arc<Core>,
    slot: usize,
    /// L: is the lock, for some nanoseconds; guards where the next part begins, `None` behind the last.
    next: SpinLock<Option<u64>>,
}

/// Starts a request that is inside; says which hardware queue the caller then runs.
pub(crate) fn start(pending: Box<Pending>) -> Option<usize> {
    let (core, slot) = (Arc::clone(&pending.core), pending.slot);
    let whole = Whole::new(Held::queued(pending));
    let split = Arc::new(Split { whole, core, slot, next: SpinLock::new(Some(0)) });
    let mut run = None;
    for _ in 0..AHEAD {
        let Some(hctx) = split.send_next() else { break };
        run = Some(hctx);
    }
    run
}

impl Split {
    /// Sends the next part; says which hardware queue the caller then runs. `None` behind the last one.
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
            // In the lock, so that bytes are claimed in their order.
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
