//! The link between one queue and one pool, the kernel's `pool_workqueue`; and the way of an
//! instance from the queue to the pool, past the limiter's gate.
//!
//! An instance that is queued holds a [`Ticket`]: its pwq, and the colour that it is counted as.
//! Everything that queueing writes (the pwq's reference count, the tally) lies on lines that only
//! this queue on this pod uses: no line is shared by all CPUs.
//!
//! The steps have the names of `limit.md` and `README.md` beside this file.

use std::collections::HashSet;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::CachePadded;
use corewise_sync::atomic::Ordering;
use corewise_sync::fence::FullFence;
use corewise_sync::hazard::Hazard;
use corewise_sync::list::List;

use crate::error::QueueError;
use crate::pool::Pool;
use crate::pool::group::Group;
use crate::pools::Lease;
use crate::pwq::flush::leave;
use crate::pwq::limit::{Admission, Gate, Hold, LimitSlot};
use crate::pwq::queue_core::Deferred;
use crate::pwq::queue_core::{QueueCore, Traits};
use crate::pwq::slot::{PwqSlot, RealCounts, SlotContent, Tally};
use crate::report::Counters;
use crate::report::QueueStats;
use crate::task::claim::{Claimed, Container};
use crate::task::header::LentItem;
use crate::task::header::{Header, Queued};
use crate::task::running::{self, Running};
use crate::task::ticket::{Event, QueueHome, Schedule, Spot, Ticket};

pub(crate) mod flush;
pub(crate) mod limit;
pub(crate) mod queue_core;
pub(crate) mod slot;
pub(crate) mod table;
pub(crate) mod waiting;

/// Maximum of stripes of the counts of a pwq.
const MAX_STRIPES: usize = 16;

/// One queue on one pool.
pub(crate) struct Pwq {
    pub(crate) counters: CachePadded<Counters>,
    /// I: the queue.
    pub(crate) shared: Arc<QueueCore>,
    /// I: the pools of the queue's attributes, as they were when this pwq was made.
    pub(crate) group: Arc<Group>,
    /// I: index of the pool among them.
    pub(crate) pool: usize,
    /// I: the pool itself.
    pub(crate) at: ArcField<Group, Pool<FullFence>>,
    /// I: the slot of the limiter that its instances are counted in.
    pub(crate) slot: ArcField<QueueCore, LimitSlot<Queued>>,
    /// Keeps the pools open.
    _lease: Arc<Lease>,
}

impl Pwq {
    /// Joins a queue with a pool. From here on flushes look at it. The slot is the queue's.
    pub(crate) fn join(
        shared: &Arc<QueueCore>,
        lease: &Arc<Lease>,
        pool: usize,
    ) -> NonNull<PwqSlot<Pwq>> {
        let group = &lease.group;
        let spec = &group.pools[pool].spec;
        let pwq = Pwq {
            counters: CachePadded::default(),
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            pool,
            at: ArcField::of(group, |group| &group.pools[pool]),
            slot: ArcField::of(shared, |shared| {
                shared.limiter.slot(shared.limiter.slot_of(pool, spec.node))
            }),
            _lease: Arc::clone(lease),
        };
        shared.colours.fill(spec.cpus.len().clamp(1, MAX_STRIPES), pwq)
    }

    /// Returns the pwq of a ticket.
    #[inline]
    pub(crate) fn of(ticket: &Ticket) -> &Pwq {
        let slot = ticket.spot().home.cast::<PwqSlot<Pwq>>();
        // SAFETY: tickets are of slots of pwqs ([`Ticket::new`]), and its instance isn't over: so
        // the pwq is there (`README.md`).
        unsafe { slot.as_ref().pwq() }
    }

    /// Returns the counts of this pwq, and of its slot since the pwq has that.
    pub(crate) fn stats(&self, slot: &PwqSlot<Pwq>, carried: &Deferred) -> QueueStats {
        let mut stats = QueueStats::default();
        carried.add_to(&mut stats, slot, Tally::queued_on_pwq);
        self.counters.add_to(&mut stats);
        stats
    }

    /// Returns its key in that slot, among those that wait.
    pub(crate) fn line(&self) -> usize {
        self.shared.limiter.line_of(ptr::from_ref(self) as usize)
    }

    /// Returns the colours of the instances that the limiter holds back here.
    pub(crate) fn colours_held(&self) -> HashSet<u8> {
        // SAFETY: each is in the list, whose lock is held: its slot is filled, and a claimant
        // writes it only when the item is out of there.
        let colour = |held: &Header| unsafe { held.job() }.ticket.as_ref().map(Ticket::colour);
        let seen = self.slot.see_held(self.line(), |held| held.iter().filter_map(colour).collect());
        seen.unwrap_or_default()
    }

    /// Takes an item that the caller has claimed out of the limiter's list of held ones; returns
    /// `None` if it has left the list.
    pub(crate) fn release(&self, item: LentItem<'_>) -> Option<Queued> {
        self.slot.take_held(self.line(), |held| {
            let here = item.place(item.state.snapshot().seq()) == Container::Held;
            // SAFETY: an item is made `Held` under the slot's lock, in the list of its pwq's line.
            // The thread that takes it out of that list changes the state under the same lock.
            here.then(|| unsafe { held.remove(item.pointer()) })
        })
    }
}

impl Drop for Pwq {
    fn drop(&mut self) {
        // A queuer that has pushed an instance of this pwq may not be back yet.
        self.shared.hazards.retire(Arc::clone(&self.group) as _);
    }
}

impl SlotContent for Pwq {
    fn home(&self) -> QueueHome {
        let QueueCore { id, traits: Traits { timed, .. }, .. } = *self.shared;
        QueueHome { queue: id, timed, schedule: &OfPwq }
    }

    fn collected(&self) {
        self.shared.former.keep(&self.counters);
    }
}

/// Carries out Protect and Push, of an instance that was Entered just now.
#[inline(always)]
pub(super) fn push_new(hazard: Hazard, queued: Queued) {
    // These are plain pointers: the instance may be over before the push is, and the pwq gone.
    let (group, at, pool, stripe) = {
        let ticket = queued.ticket().expect("it was Entered");
        let pwq = Pwq::of(ticket);
        (Arc::as_ptr(&pwq.group), NonNull::from(&*pwq.at), pwq.pool, ticket.stripe())
    };
    // SAFETY: the copy isn't dropped. The instance keeps the pwq, and that the group, until the
    // push, during which it is protected.
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

/// Carries out Lend: to its pool, past its queue's limit, if it was held back. The instance gets a
/// place in the limiter beyond the maximum, if it has none. The caller's thread runs an item that
/// has a place in the same slot, and doesn't use it before this instance is over.
pub(crate) fn let_through(claimed: Claimed) {
    if let Some(ticket) = claimed.job().ticket.as_ref().filter(|ticket| !ticket.is_counted()) {
        Pwq::of(ticket).slot.lend();
        ticket.count();
    }
    push(claimed.release());
}

/// Puts the instance back into the list of the pool that it was queued on.
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
        self.set_place(Container::Held);
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
    /// Returns the calling thread's hazard, for the push.
    #[inline(always)]
    pub(super) fn hazard(&self) -> Hazard {
        // SAFETY: a queuer doesn't keep it.
        unsafe { self.hazards.own() }
    }

    /// Passes a gate that isn't open. The queue is this one.
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
        // If somebody has claimed it meanwhile it was queued, and is theirs.
        if queued.refuse() { Err(error) } else { Ok(()) }
    }

    /// Sends the instance to the pool, or holds it back.
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

    /// Checks that the queue takes the instance in its present state.
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

    /// Returns true if the calling thread runs an item of this queue: the items that it queues are
    /// chained work.
    pub(crate) fn runs_here(&self) -> bool {
        running::current(|job| {
            let ticket = job.and_then(Running::ticket);
            ticket.is_some_and(|ticket| ptr::eq(&*Pwq::of(ticket).shared, self))
        })
    }
}

/// The schedule of the homes of slots of pwqs.
pub(super) struct OfPwq;

/// Returns the slot of such a home.
///
/// # Safety
/// It is one, and an instance that was counted there isn't over, as long as the reference lives.
unsafe fn slot<'a>(at: Spot) -> &'a PwqSlot<Pwq> {
    // SAFETY: as the caller says.
    unsafe { at.home.cast().as_ref() }
}

impl Schedule for OfPwq {
    fn queue_name<'a>(&self, ticket: &'a Ticket) -> &'a str {
        &Pwq::of(ticket).shared.name
    }

    fn take_out(&self, ticket: &Ticket, item: LentItem<'_>, place: Container) -> Option<Queued> {
        let pwq = Pwq::of(ticket);
        match place {
            Container::Held => pwq.release(item),
            _ => pwq.group.unlist(pwq.pool, ticket.stripe(), item, place),
        }
    }

    unsafe fn share(&self, at: Spot) -> Option<Ticket> {
        // SAFETY: as the caller says.
        let of = unsafe { slot(at) };
        // SAFETY: as above.
        let limit = &unsafe { of.pwq() }.slot;
        let counted = match limit.admit(limit.glance()) {
            Admission::Free => false,
            Admission::Counted => true,
            Admission::Wait => return None,
        };
        // Enters without Validate: the instance keeps the pwq, as if a place were Reused. It was
        // never queued, for the statistics.
        of.tally.pair(at.stripe, at.colour).enter();
        of.tally.undo(at.stripe);
        // SAFETY: the place was Entered just now, and is this ticket's.
        let ticket = unsafe { Ticket::new(at) };
        if counted {
            ticket.count();
        }
        Some(ticket)
    }

    unsafe fn note(&self, at: Spot, what: Event) {
        // SAFETY: as the caller says.
        let slot = unsafe { slot(at) };
        // SAFETY: as above.
        let pwq = || unsafe { slot.pwq() };
        match what {
            Event::Cancelled => {
                pwq().counters.cancelled.fetch_add(1, Ordering::Relaxed);
            }
            Event::Overflowed => {
                pwq().counters.overflowed.fetch_add(1, Ordering::Relaxed);
            }
            Event::Took(took) => {
                let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                pwq().counters.run_ns.fetch_add(took, Ordering::Relaxed);
            }
            Event::Withdrawn => slot.tally.undo(at.stripe),
            Event::Again(many) => slot.tally.queued_again(at.stripe, many),
        }
    }

    #[inline]
    unsafe fn leave(&self, at: Spot, many: u64, counted: bool) {
        if counted {
            // SAFETY: as the caller says.
            unsafe { slot(at).pwq() }.slot.put(&mut push);
        }
        // SAFETY: as the caller says.
        unsafe { leave::<RealCounts, Pwq, QueueCore>(at, many, |pwq| Arc::clone(&pwq.shared)) };
    }
}

/// A reference to a part that keeps the whole.
pub(crate) struct ArcField<W, T> {
    part: NonNull<T>,
    _whole: Arc<W>,
}

// SAFETY: it stands for an `Arc` of the whole, and a reference to a `T`.
unsafe impl<W: Send + Sync, T: Sync> Send for ArcField<W, T> {}
// SAFETY: as above.
unsafe impl<W: Send + Sync, T: Sync> Sync for ArcField<W, T> {}

impl<W, T> ArcField<W, T> {
    /// Creates a reference to the part that `find` returns.
    pub(crate) fn of(whole: &Arc<W>, find: impl FnOnce(&W) -> &T) -> Self {
        ArcField { part: NonNull::from(find(whole)), _whole: Arc::clone(whole) }
    }
}

impl<W, T> Deref for ArcField<W, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `find` works for any life of the whole, so the part lives for as long as that,
        // which is kept, and is shared until then.
        unsafe { self.part.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_keeps_the_whole() {
        let whole = Arc::new([Box::new(1), Box::new(2)]);
        let part = ArcField::of(&whole, |all| &*all[1]);
        let seen = Arc::downgrade(&whole);
        drop(whole);
        assert_eq!((*part, seen.strong_count()), (2, 1));
        drop(part);
        assert_eq!(seen.strong_count(), 0);
    }
}
