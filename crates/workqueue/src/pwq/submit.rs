//! How an instance gets from a queue to its pool: counted in its pwq, past the limiter's gate.
//!
//! The steps have the names of `../pwq/limit.md` and `../pwq/README.md`.

use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::fence::FullFence;
use corewise_sync::hazard::Hazard;
use corewise_sync::list::List;

use crate::attributes::At;
use crate::pool::Pool;
use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::limit_slot::{Admission, Gate, Hold, Slot};
use crate::pwq::queue_core::QueueCore;
use crate::pwq::table::PwqTable;
use crate::pwq::ticket::Ticket;
use crate::task::claim::{Claimed, Place};
use crate::task::current;
use crate::task::header::{Header, Job, Queued, Running};
use crate::task::vtable::ItemRef;

/// What became of an attempt to queue something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Queueing {
    /// It is queued.
    Queued,
    /// It was pending already, or is disabled.
    Pending,
    /// The queue doesn't take it: it is drained, or closed.
    Refused,
}

impl PwqTable {
    /// Queues the item that `item` gives, whose header is `header`. Where it isn't queued it is as if
    /// nobody had tried. `accepted`: it is part of what the queue has accepted before.
    ///
    /// Each read-modify-write in there keeps the processor from what follows until it is through. So
    /// what can be read before it is.
    #[inline(always)]
    pub(crate) fn queue(
        &self,
        place: At,
        header: &Header,
        item: impl FnOnce() -> ItemRef,
        site: &'static Location<'static>,
        accepted: bool,
    ) -> Queueing {
        if self.refuses_at_once(accepted) {
            return Queueing::Refused;
        }
        // Pick.
        let (picked, hazard) = (self.pick(place), self.shared().hazard());
        if !header.state.pend() {
            return Queueing::Pending;
        }
        // Enter.
        let entered = self.enter(place, picked);
        let way = Way::of(entered.pwq(), entered.stripe());
        // ReadGate.
        let gate = way.gate();
        // SAFETY: `pend` succeeded: the bit is ours, and `Queued` takes it over.
        let queued = unsafe {
            Queued::new(item(), Job { ticket: Ticket::new(entered.keep()).into(), site })
        };
        if gate.open() {
            way.push(hazard, queued);
            return Queueing::Queued;
        }
        self.shared().pass(gate, queued, accepted)
    }

    /// Queues an item that was made pending, just now, and that nobody else knows of. Gives it back where
    /// the queue doesn't take it.
    #[inline(always)]
    pub(crate) fn queue_new(
        &self,
        place: At,
        item: ItemRef,
        site: &'static Location<'static>,
    ) -> Result<(), ItemRef> {
        if self.refuses_at_once(false) {
            return Err(item);
        }
        // Enter and ReadGate, as in `queue`.
        let (picked, hazard) = (self.pick(place), self.shared().hazard());
        let entered = self.enter(place, picked);
        let way = Way::of(entered.pwq(), entered.stripe());
        let gate = way.gate();
        // SAFETY: the item is pending, and new.
        let queued =
            unsafe { Queued::new(item, Job { ticket: Ticket::new(entered.keep()).into(), site }) };
        if gate.open() {
            way.push(hazard, queued);
        } else if self.shared().refuses(gate, false) {
            return Err(queued.take_new());
        } else {
            self.shared().admit(gate, queued);
        }
        Ok(())
    }

    /// Puts a claimed instance here, wherever it was: the same instance, counted here from now on.
    /// Where the queue doesn't take it, it is cancelled; then false.
    pub(crate) fn place(&self, place: At, mut claimed: Claimed) -> bool {
        if self.refuses_at_once(false) {
            claimed.cancel();
            return false;
        }
        // Enter and ReadGate, as for a new one.
        let entered = self.enter(place, self.pick(place));
        let way = Way::of(entered.pwq(), entered.stripe());
        let gate = way.gate();
        let old = claimed.with_job(|job| job.ticket.replace(Ticket::new(entered.keep()).into()));
        let queued = claimed.release();
        let queueing = if gate.open() {
            way.push(self.shared().hazard(), queued);
            Queueing::Queued
        } else {
            self.shared().pass(gate, queued, false)
        };
        // After it lies somewhere: this may let others through, and who claims it would wait. Also
        // itself, where it waits for its own old place.
        drop(old);
        queueing == Queueing::Queued
    }

    /// Whether the queue takes nothing any more. All slots of the limiter are closed at once, and when
    /// the pools are, before them.
    pub(crate) fn is_closed(&self) -> bool {
        self.glance().closed()
    }

    /// Whether the queue doesn't take it: asked before anything is changed. All slots are closed, or
    /// drained, at once.
    #[inline]
    pub(crate) fn refuses_at_once(&self, accepted: bool) -> bool {
        self.shared().refuses(self.glance(), accepted)
    }
}

/// The way of a queuer that has Entered a pwq, with what it may touch also when its instance is over:
/// the pwq may be gone then. Plain pointers, which stay in registers.
struct Way {
    /// The queue's, which the caller has a handle of.
    slot: NonNull<Slot<Queued>>,
    /// An `Arc`'s, not counted: the instance keeps it, and then the hazard pointer.
    group: *const Group,
    /// One of the group's.
    at: NonNull<Pool<FullFence>>,
    /// Its number.
    pool: usize,
    stripe: u32,
}

impl Way {
    /// Of an instance that is counted there, and wasn't pushed yet.
    #[inline(always)]
    fn of(pwq: &Pwq, stripe: u32) -> Way {
        let (slot, group) = (NonNull::from(&*pwq.slot), Arc::as_ptr(&pwq.group));
        Way { slot, group, at: NonNull::from(&*pwq.at), pool: pwq.pool, stripe }
    }

    /// ReadGate.
    #[inline(always)]
    fn gate(&self) -> Gate {
        // SAFETY: it is the queue's, see `slot`.
        unsafe { self.slot.as_ref() }.gate()
    }

    /// Protect and Push.
    #[inline(always)]
    fn push(self, hazard: Hazard, queued: Queued) {
        // SAFETY: the copy isn't dropped. The instance that was Entered keeps the pwq, and that the
        // group, until the push, during which it is protected.
        let group = ManuallyDrop::new(unsafe { Arc::from_raw(self.group) });
        hazard.protect(&group, |group| {
            // SAFETY: it is the group's.
            let at = unsafe { self.at.as_ref() };
            group.push_to(at, self.pool, self.stripe, queued);
        });
    }
}

/// Pushes an instance that was held back: it has a place now.
pub(crate) fn push(queued: Queued) {
    if let Some((group, pool, stripe)) = queued.home() {
        group.push_held(pool, stripe, queued);
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
    fn hazard(&self) -> Hazard {
        // SAFETY: a queuer doesn't keep it.
        unsafe { self.hazards.own() }
    }

    /// Past a gate that isn't open. The queue is this one.
    #[cold]
    #[inline(never)]
    fn pass(&self, gate: Gate, queued: Queued, accepted: bool) -> Queueing {
        if self.refuses(gate, accepted) {
            return if queued.refuse() { Queueing::Refused } else { Queueing::Queued };
        }
        self.admit(gate, queued);
        Queueing::Queued
    }

    /// To the pool, or to those that are held back.
    #[cold]
    #[inline(never)]
    fn admit(&self, gate: Gate, queued: Queued) {
        let ticket = queued.ticket().expect("it was Entered");
        let (way, line) = (Way::of(&ticket.pwq, ticket.stripe()), ticket.pwq.line());
        // SAFETY: it is the queue's.
        match unsafe { way.slot.as_ref() }.admit(gate) {
            Admission::Free => way.push(self.hazard(), queued),
            Admission::Counted => {
                queued.count();
                way.push(self.hazard(), queued);
            }
            // SAFETY: as above.
            Admission::Wait => unsafe { way.slot.as_ref() }.hold(line, queued, &mut push),
        }
    }

    /// Whether the queue doesn't take it, as it stands.
    #[inline]
    fn refuses(&self, gate: Gate, accepted: bool) -> bool {
        !gate.open() && self.refuses_now(gate, accepted)
    }

    #[cold]
    fn refuses_now(&self, gate: Gate, accepted: bool) -> bool {
        if gate.closed() {
            return true;
        }
        let refuses = gate.draining() && !accepted && !self.is_below && !self.runs_here();
        if refuses {
            tracing::warn!(
                queue = self.name,
                "queued while the queue is drained, not by one of its own items: dropped"
            );
        }
        refuses
    }

    /// Whether the calling thread runs an item of this queue: what it queues is chained work.
    pub(crate) fn runs_here(&self) -> bool {
        current::with(|job| {
            let ticket = job.and_then(Running::ticket);
            ticket.is_some_and(|ticket| ptr::eq(&*ticket.pwq.shared, self))
        })
    }
}
