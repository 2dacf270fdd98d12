//! How an instance gets from a queue to its pool: counted in its link, past the limiter's gate.
//!
//! The steps have the names of `limiter/README.md` and `links.md`.

use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;

use corewise_sync::list::List;

use crate::claim::{Claimed, Place};
use crate::current;
use crate::item::{Header, Job, Queued, Running};
use crate::limiter::slot::{Admission, Gate, Hold, Slot};
use crate::link::Shared;
use crate::links::{self, Links};
use crate::pool::group::Group;
use crate::table::ItemRef;
use crate::ticket::Ticket;

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

impl Links {
    /// Queues the item that `item` gives, whose header is `header`. Where it isn't queued it is as if
    /// nobody had tried. `accepted`: it is part of what the queue has accepted before.
    #[inline]
    pub(crate) fn queue(
        &self,
        place: links::Place,
        header: &Header,
        item: impl FnOnce() -> ItemRef,
        site: &'static Location<'static>,
        accepted: bool,
    ) -> Queueing {
        if self.refuses_at_once(accepted) {
            return Queueing::Refused;
        }
        if !header.state.pend() {
            return Queueing::Pending;
        }
        // Enter.
        let (way, ticket) = self.way(place);
        // ReadGate.
        let gate = way.slot.gate();
        // SAFETY: `pend` succeeded: the bit is ours, and `Queued` takes it over.
        let queued = unsafe { Queued::new(item(), Job { ticket: ticket.into(), site }) };
        way.pass(gate, queued, accepted)
    }

    /// Queues an item that was made pending, just now, and that nobody else knows of. Gives it back where
    /// the queue doesn't take it.
    #[inline]
    pub(crate) fn queue_new(
        &self,
        place: links::Place,
        item: ItemRef,
        site: &'static Location<'static>,
    ) -> Result<(), ItemRef> {
        if self.refuses_at_once(false) {
            return Err(item);
        }
        // Enter and ReadGate, as in `queue`.
        let (way, ticket) = self.way(place);
        let gate = way.slot.gate();
        // SAFETY: the item is pending, and new.
        let queued = unsafe { Queued::new(item, Job { ticket: ticket.into(), site }) };
        if gate.open() {
            way.push(queued);
        } else if self.shared().refuses(gate, false) {
            return Err(queued.take_new());
        } else {
            way.admit(gate, queued);
        }
        Ok(())
    }

    /// Puts a claimed instance here, wherever it was: the same instance, counted here from now on.
    /// Where the queue doesn't take it, it is cancelled; then false.
    pub(crate) fn place(&self, place: links::Place, mut claimed: Claimed) -> bool {
        if self.refuses_at_once(false) {
            claimed.cancel();
            return false;
        }
        // Enter and ReadGate, as for a new one.
        let (way, ticket) = self.way(place);
        let gate = way.slot.gate();
        let old = claimed.with_job(|job| job.ticket.replace(ticket.into()));
        let queued = claimed.release();
        let queueing = way.pass(gate, queued, false);
        // After it lies somewhere: this may let others through, and who claims it would wait. Also
        // itself, where it waits for its own old place.
        drop(old);
        queueing == Queueing::Queued
    }

    /// Whether the queue takes nothing any more. All slots of the limiter are closed at once, and when
    /// the pools are, before them.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared().limiter.slot(0).glance().closed()
    }

    /// Whether the queue doesn't take it: asked before anything is changed. All slots are closed, or
    /// drained, at once.
    #[inline]
    fn refuses_at_once(&self, accepted: bool) -> bool {
        self.shared().refuses(self.shared().limiter.slot(0).glance(), accepted)
    }
}

/// The way of a queuer that has Entered a link, with what it may touch also when its instance is over:
/// the link may be gone then.
struct Way<'a> {
    shared: &'a Shared,
    slot: &'a Slot<Queued>,
    /// What stands for the link among those that wait.
    line: usize,
    /// Not counted: the instance keeps it, and then the cover.
    group: ManuallyDrop<Arc<Group>>,
    pool: usize,
    stripe: u32,
}

impl Links {
    #[inline]
    fn way(&self, place: links::Place) -> (Way<'_>, Ticket) {
        let entered = self.enter(place);
        let (link, shared) = (entered.link(), &**self.shared());
        let slot = shared.limiter.slot(link.slot);
        let line = ptr::from_ref(link) as usize;
        // SAFETY: the copy isn't dropped. The instance that was Entered keeps the link, and that the
        // group, until the push, during which it is covered.
        let group = ManuallyDrop::new(unsafe { ptr::read(&raw const link.group) });
        let pool = link.pool;
        let ticket = Ticket::new(entered.keep());
        (Way { shared, slot, line, group, pool, stripe: ticket.stripe() }, ticket)
    }
}

impl Way<'_> {
    /// To the pool, or past the gate where that isn't open.
    #[inline]
    fn pass(&self, gate: Gate, queued: Queued, accepted: bool) -> Queueing {
        if gate.open() {
            self.push(queued);
            return Queueing::Queued;
        }
        self.queue_past(gate, queued, accepted)
    }

    #[inline]
    fn push(&self, queued: Queued) {
        let push = |group: &Arc<Group>| group.push(self.pool, self.stripe, queued);
        self.shared.covers.during(&self.group, push);
    }

    #[cold]
    fn queue_past(&self, gate: Gate, queued: Queued, accepted: bool) -> Queueing {
        if self.shared.refuses(gate, accepted) {
            return if queued.refuse() { Queueing::Refused } else { Queueing::Queued };
        }
        self.admit(gate, queued);
        Queueing::Queued
    }

    /// Past the gate: to the pool, or to those that are held back.
    #[cold]
    fn admit(&self, gate: Gate, queued: Queued) {
        match self.slot.admit(gate) {
            Admission::Free => self.push(queued),
            Admission::Counted => {
                queued.count();
                self.push(queued);
            }
            Admission::Wait => {
                self.slot.hold(self.shared.limiter.line_of(self.line), queued, &mut push);
            }
        }
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

impl Shared {
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
        let refuses = gate.draining() && !accepted && !self.runs_here();
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
            ticket.is_some_and(|ticket| ptr::eq(&*ticket.link.shared, self))
        })
    }
}
