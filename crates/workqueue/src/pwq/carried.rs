//! What is in flight on a queue's pwqs, for reports: what workers carry is over.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use crate::pool::Pool;
use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::queue_core::QueueCore;
use crate::pwq::slot::PwqSlot;

/// What the workers that may run a queue's work carry (a moment ago), by the slot's address.
pub(crate) struct Deferred(BTreeMap<usize, OfSlot>);

struct OfSlot {
    /// How many were over, before the workers were looked at.
    over: u64,
    /// How many had been queued by Reuse, as far as the slot knew.
    again: u64,
    carried: u64,
    /// What the slot doesn't know of.
    more: u64,
}

impl Deferred {
    /// Looks at them. Takes short locks.
    pub(crate) fn of(queue: &QueueCore) -> Deferred {
        let mut slots = BTreeMap::new();
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for (slot, pwq) in queue.colours.members.lock().all() {
            let of_slot =
                OfSlot { over: slot.tally.over(), again: slot.tally.again(), carried: 0, more: 0 };
            slots.insert(ptr::from_ref(slot).addr(), of_slot);
            if let Some(pwq) = pwq
                && !groups.iter().any(|group| Arc::ptr_eq(group, &pwq.group))
            {
                groups.push(Arc::clone(&pwq.group));
            }
        }
        let pools = groups.iter().flat_map(|group| group.pools.iter());
        let workers: Vec<_> = pools.flat_map(Pool::workers).collect();
        let first: Vec<_> = workers.iter().map(|worker| worker.carry.look()).collect();
        for (worker, first) in workers.iter().zip(first) {
            let now = worker.carry.look();
            let Some(slot) = slots.get_mut(&now.home) else { continue };
            slot.more += now.again();
            // What doesn't change between two rounds was there at one moment together: none of it is on its
            // way from one worker to another, by Reuse. What does is taken for what is in flight.
            if now == first {
                slot.carried += now.many();
            }
        }
        Deferred(slots)
    }

    /// Instances queued here and not over. Not less than there were at one moment since this was made:
    /// those over were counted before, and those that came are after.
    pub(crate) fn in_flight(&self, slot: &PwqSlot<Pwq>) -> u64 {
        let most = slot.tally.in_flight();
        let Some(of_slot) = self.0.get(&ptr::from_ref(slot).addr()) else { return most };
        most.min(slot.tally.ever_came().saturating_sub(of_slot.over + of_slot.carried))
    }

    /// Instances queued here so far, by `counted`, which is what the slot knows of.
    pub(crate) fn queued(&self, slot: &PwqSlot<Pwq>, counted: u64) -> u64 {
        let Some(OfSlot { again, more, .. }) = self.0.get(&ptr::from_ref(slot).addr()) else {
            return counted;
        };
        // What the slot was told meanwhile isn't counted twice.
        counted + (again + more).saturating_sub(slot.tally.again())
    }
}
