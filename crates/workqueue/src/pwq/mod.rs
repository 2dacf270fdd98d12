//! What joins one queue with one pool: the kernel's `pool_workqueue`.
//!
//! An instance that is queued holds a [`Ticket`]: its pwq, and the colour that
//! it is counted as.
//! Everything that queueing writes (the pwq's reference count, the tally) lies on lines that only
//! this queue on this pod uses: no line is shared by all CPUs.

mod arc_field;
pub(crate) mod counts;
pub(crate) mod enter;
pub(crate) mod flush;
pub(crate) mod limit;
pub(crate) mod limit_policy;
pub(crate) mod limit_slot;
pub(crate) mod queue_core;
mod report;
pub(crate) mod room;
mod schedule;
pub(crate) mod slot;
pub(crate) mod submit;
pub(crate) mod table;
pub(crate) mod waiting;

use std::collections::HashSet;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::CachePadded;
use corewise_sync::fence::FullFence;

use crate::pool::Pool;
use crate::pool::group::Group;
use crate::pools::groups::Lease;
use crate::pwq::arc_field::ArcField;
use crate::pwq::counts::Tally;
use crate::pwq::limit_slot::Slot;
use crate::pwq::queue_core::{QueueCore, Traits};
use crate::pwq::report::Deferred;
use crate::pwq::schedule::OfPwq;
use crate::pwq::slot::{InSlot, PwqSlot};
use crate::report::QueueStats;
use crate::report::counters::Counters;
use crate::task::claim::Place;
use crate::task::header::{Header, Queued};
use crate::task::ticket::{Home, Ticket};
use crate::task::vtable::Lent;

/// How many stripes the counts of a pwq have at most.
const MAX_STRIPES: usize = 16;

/// One queue on one pool.
pub(crate) struct Pwq {
    pub(crate) counters: CachePadded<Counters>,
    /// I: the queue.
    pub(crate) shared: Arc<QueueCore>,
    /// I: the pools of the queue's attributes, as they were when this pwq was made.
    pub(crate) group: Arc<Group>,
    /// I: which of them.
    pub(crate) pool: usize,
    /// I: that one.
    pub(crate) at: ArcField<Group, Pool<FullFence>>,
    /// I: the slot of the limiter that its instances are counted in.
    pub(crate) slot: ArcField<QueueCore, Slot<Queued>>,
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

    /// That of a ticket.
    #[inline]
    pub(crate) fn of(ticket: &Ticket) -> &Pwq {
        let slot = ticket.spot().home.cast::<PwqSlot<Pwq>>();
        // SAFETY: tickets are of slots of pwqs ([`Ticket::new`]), and its instance isn't over: so the pwq is
        // there (`README.md`).
        unsafe { slot.as_ref().pwq() }
    }

    /// What was counted here, and on its slot since it has that.
    pub(crate) fn stats(&self, slot: &PwqSlot<Pwq>, carried: &Deferred) -> QueueStats {
        let mut stats = QueueStats::default();
        carried.add_to(&mut stats, slot, Tally::queued_on_pwq);
        self.counters.add_to(&mut stats);
        stats
    }

    /// What stands for it in that slot, among those that wait.
    pub(crate) fn line(&self) -> usize {
        self.shared.limiter.line_of(ptr::from_ref(self) as usize)
    }

    /// The colours of what the limiter holds back here.
    pub(crate) fn colours_held(&self) -> HashSet<u8> {
        // SAFETY: each is in the list, whose lock is held: its slot is filled, and a claimant writes it
        // only when the item is out of there.
        let colour = |held: &Header| unsafe { held.job() }.ticket.as_ref().map(Ticket::colour);
        let seen = self.slot.see_held(self.line(), |held| held.iter().filter_map(colour).collect());
        seen.unwrap_or_default()
    }

    /// Takes an item that the caller has claimed out of the list of those that the limiter holds
    /// back; `None` where it has left that.
    pub(crate) fn release(&self, item: Lent<'_>) -> Option<Queued> {
        self.slot.take_held(self.line(), |held| {
            let here = item.place(item.state.snapshot().seq()) == Place::Held;
            // SAFETY: an item is made `Held` under the slot's lock, in the list of its pwq's line,
            // and the thread that takes it out of that says otherwise under the same lock.
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

impl InSlot for Pwq {
    fn home(&self) -> Home {
        let QueueCore { id, traits: Traits { timed, .. }, .. } = *self.shared;
        Home { queue: id, timed, schedule: &OfPwq }
    }

    fn collected(&self) {
        self.shared.former.keep(&self.counters);
    }
}
