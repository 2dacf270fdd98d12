//! What joins one queue with one pool: the kernel's `pool_workqueue`.
//!
//! An instance that is queued holds a [`Ticket`](crate::pwq::ticket::Ticket): its link, and the colour that
//! it is counted as.
//! Everything that queueing writes (the link's reference count, the tally) lies on lines that only
//! this queue on this pod uses: no line is shared by all CPUs.

pub(crate) mod carried;
pub(crate) mod counts;
pub(crate) mod deferred;
pub(crate) mod flush;
pub(crate) mod limit;
pub(crate) mod limit_policy;
pub(crate) mod limit_slot;
mod part;
pub(crate) mod queue_core;
mod report;
pub(crate) mod slot;
pub(crate) mod stats;
pub(crate) mod submit;
pub(crate) mod table;
pub(crate) mod ticket;
pub(crate) mod waiting;

use std::collections::HashSet;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::CachePadded;
use corewise_sync::fence::FullFence;

use crate::pool::Pool;
use crate::pool::group::Group;
use crate::pools::groups::Lease;
use crate::pwq::carried::Carried;
use crate::pwq::limit_slot::Slot;
use crate::pwq::part::Part;
use crate::pwq::queue_core::Shared;
use crate::pwq::slot::{Seat, Tied};
use crate::pwq::stats::Counters;
use crate::pwq::ticket::Ticket;
use crate::report::QueueStats;
use crate::task::claim::Place;
use crate::task::header::{Header, Queued};
use crate::task::vtable::Lent;

/// How many stripes the counts of a link have at most.
const MAX_STRIPES: usize = 16;

/// One queue on one pool.
pub(crate) struct Link {
    pub(crate) counters: CachePadded<Counters>,
    /// I: the queue.
    pub(crate) shared: Arc<Shared>,
    /// I: the pools of the queue's attributes, as they were when this link was made.
    pub(crate) group: Arc<Group>,
    /// I: which of them.
    pub(crate) pool: usize,
    /// I: that one.
    pub(crate) at: Part<Group, Pool<FullFence>>,
    /// I: the slot of the limiter that its instances are counted in.
    pub(crate) slot: Part<Shared, Slot<Queued>>,
    /// Keeps the pools open.
    _lease: Arc<Lease>,
}

impl Link {
    /// Joins a queue with a pool. From here on flushes look at it. The seat is the queue's.
    pub(crate) fn seated(
        shared: &Arc<Shared>,
        lease: &Arc<Lease>,
        pool: usize,
    ) -> NonNull<Seat<Link>> {
        let group = &lease.group;
        let spec = &group.pools[pool].spec;
        let link = Link {
            counters: CachePadded::default(),
            shared: Arc::clone(shared),
            group: Arc::clone(group),
            pool,
            at: Part::of(group, |group| &group.pools[pool]),
            slot: Part::of(shared, |shared| {
                shared.limiter.slot(shared.limiter.slot_of(pool, spec.node))
            }),
            _lease: Arc::clone(lease),
        };
        shared.colours.fill(spec.cpus.len().clamp(1, MAX_STRIPES), link)
    }

    /// What was counted here, and on its seat since it has that.
    pub(crate) fn stats(&self, seat: &Seat<Link>, carried: &Carried) -> QueueStats {
        // In this order: see `Shared::stats`.
        let in_flight = carried.in_flight(seat);
        let mut stats = QueueStats::default();
        stats.add(carried.queued(seat, seat.tally.queued_on_link()), in_flight);
        self.counters.add_to(&mut stats);
        stats
    }

    /// What stands for it in that slot, among those that wait.
    pub(crate) fn line(&self) -> usize {
        self.shared.limiter.line_of(ptr::from_ref(self) as usize)
    }

    /// Whether no CPU of its pod can be used (a moment ago).
    #[inline]
    pub(crate) fn away(&self) -> bool {
        self.at.reading().away()
    }

    /// Whether its pod is for no work that may run anywhere (a moment ago).
    #[inline]
    pub(crate) fn away_or_aside(&self) -> bool {
        let reading = self.at.reading();
        reading.away() || reading.aside()
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
        self.slot.with_held(self.line(), |held| {
            let here = item.place(item.state.snapshot().seq()) == Place::Held;
            // SAFETY: an item is made `Held` under the slot's lock, in the list of its link's line,
            // and who takes it out of that says otherwise under the same lock.
            here.then(|| unsafe { held.remove(item.pointer()) })
        })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Who has pushed what was queued here may not be back yet.
        self.shared.hazards.retire(Arc::clone(&self.group) as _);
    }
}

impl Tied for Link {
    fn collected(&self) {
        self.shared.former.keep(&self.counters);
    }
}
