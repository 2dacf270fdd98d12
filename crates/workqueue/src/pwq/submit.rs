//! How an instance gets from a queue to its pool: counted in its pwq, past the limiter's gate.
//!
//! The steps have the names of `../pwq/limit.md` and `../pwq/README.md`.

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::hazard::Hazard;
use corewise_sync::list::List;

use crate::error::QueueError;
use crate::pwq::Pwq;
use crate::pwq::limit_slot::{Admission, Gate, Hold};
use crate::pwq::queue_core::QueueCore;
use crate::task::claim::{Claimed, Place};
use crate::task::header::Queued;
use crate::task::running::{self, Running};

/// Protect and Push, of an instance that was Entered just now.
#[inline(always)]
pub(super) fn push_new(hazard: Hazard, queued: Queued) {
    // Plain pointers: it may be over before the push is, and the pwq gone.
    let (group, at, pool, stripe) = {
        let ticket = queued.ticket().expect("it was Entered");
        let pwq = Pwq::of(ticket);
        (Arc::as_ptr(&pwq.group), NonNull::from(&*pwq.at), pwq.pool, ticket.stripe())
    };
    // SAFETY: the copy isn't dropped. The instance keeps the pwq, and that the group, until the push, during
    // which it is protected.
    let group = ManuallyDrop::new(unsafe { Arc::from_raw(group) });
    hazard.protect(&group, |group| {
        // SAFETY: it is the group's.
        let at = unsafe { at.as_ref() };
        group.push_to(at, pool, stripe, queued);
    });
}

/// Pushes an instance that was held back: it has a place now.
pub(crate) fn push(queued: Queued) {
    if let Some(ticket) = queued.ticket() {
        let (pwq, stripe) = (Pwq::of(ticket), ticket.stripe());
        // The instance may be over before the push is.
        Arc::clone(&pwq.group).push_held(pwq.pool, stripe, queued);
    }
}

/// Lend: to its pool, past its queue's limit, where it was held back: it gets a place in the limiter beyond the
/// maximum, if it has none. The caller's thread runs an item that has a place in the same slot, and doesn't use it
/// before this instance is over.
pub(crate) fn let_through(claimed: Claimed) {
    if let Some(ticket) = claimed.job().ticket.as_ref().filter(|ticket| !ticket.is_counted()) {
        Pwq::of(ticket).slot.lend();
        ticket.count();
    }
    push(claimed.release());
}

/// Back into the list of the pool that it was queued on.
pub(crate) fn requeue(claimed: Claimed) {
    let queued = claimed.release();
    // None only in models of a pool alone.
    if let Some(ticket) = queued.ticket() {
        let (pwq, stripe) = (Pwq::of(ticket), ticket.stripe());
        Arc::clone(&pwq.group).push(pwq.pool, stripe, queued);
    }
}

impl Hold for Queued {
    type List = List<Queued>;

    fn append(self, list: &mut List<Queued>) {
        self.set_place(Place::Held);
        list.push_back(self);
    }

    fn take(list: &mut List<Queued>) -> Option<Queued> {
        loop {
            if let Some(queued) = list.pop_front()?.unless_claimed() {
                queued.count();
                return Some(queued);
            }
        }
    }

    fn len(list: &List<Queued>) -> usize {
        list.len()
    }
}

impl QueueCore {
    /// The calling thread's, for the push.
    #[inline(always)]
    pub(super) fn hazard(&self) -> Hazard {
        // SAFETY: a queuer doesn't keep it.
        unsafe { self.hazards.own() }
    }

    /// Past a gate that isn't open. The queue is this one.
    #[cold]
    #[inline(never)]
    pub(super) fn pass(
        &self,
        gate: Gate,
        queued: Queued,
        accepted: bool,
    ) -> Result<(), QueueError> {
        let Err(error) = self.check(gate, accepted) else {
            self.admit(gate, queued);
            return Ok(());
        };
        // Where somebody has claimed it meanwhile it was queued, and is theirs.
        if queued.refuse() { Err(error) } else { Ok(()) }
    }

    /// To the pool, or to those that are held back.
    #[cold]
    #[inline(never)]
    pub(super) fn admit(&self, gate: Gate, queued: Queued) {
        let (slot, line) = {
            let pwq = Pwq::of(queued.ticket().expect("it was Entered"));
            (NonNull::from(&*pwq.slot), pwq.line())
        };
        // SAFETY: it is the queue's, which the caller has a handle of.
        let slot = unsafe { slot.as_ref() };
        match slot.admit(gate) {
            Admission::Free => push_new(self.hazard(), queued),
            Admission::Counted => {
                queued.count();
                push_new(self.hazard(), queued);
            }
            Admission::Wait => slot.hold(line, queued, &mut push),
        }
    }

    /// Whether the queue takes it, as it stands.
    #[inline]
    pub(super) fn check(&self, gate: Gate, accepted: bool) -> Result<(), QueueError> {
        if gate.open() { Ok(()) } else { self.check_closely(gate, accepted) }
    }

    #[cold]
    fn check_closely(&self, gate: Gate, accepted: bool) -> Result<(), QueueError> {
        if gate.closed() {
            return Err(QueueError::Closed);
        }
        if !gate.draining() || accepted || self.traits.is_below || self.runs_here() {
            return Ok(());
        }
        tracing::warn!(
            queue = self.name,
            "an item was dropped: it was queued during a drain, and not by an item of the same \
             queue"
        );
        Err(QueueError::Draining)
    }

    /// Whether the calling thread runs an item of this queue: what it queues is chained work.
    pub(crate) fn runs_here(&self) -> bool {
        running::current(|job| {
            let ticket = job.and_then(Running::ticket);
            ticket.is_some_and(|ticket| ptr::eq(&*Pwq::of(ticket).shared, self))
        })
    }
}
