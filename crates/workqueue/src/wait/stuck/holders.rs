//! The places under limits that are had by items which lie in pools: what waits for such a place waits for a worker.
//!
//! Seen of all queues at whose limits somebody on the list waits. Only pools are looked through for which no worker
//! can come.

use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::Arc;

use super::Next;
use super::flushed::Colour;
use crate::pool::current_worker;
use crate::pool::group::Group;
use crate::pwq::limit_slot::Slot;
use crate::pwq::queue_core::QueueCore;
use crate::task::header::{Header, Queued};

/// An item that has a place and lies in a pool.
pub(super) struct Holder {
    pub(super) slot: NonNull<Slot<Queued>>,
    pub(super) item: NonNull<Header>,
    pub(super) colour: Colour,
    pub(super) group: Arc<Group>,
    pub(super) pool: usize,
    /// Who flushes the queue would find it.
    pub(super) near: bool,
}

/// What was seen.
#[derive(Default)]
pub(super) struct Holders {
    pub(super) lying: Vec<Holder>,
    /// Dropped with this, and not under a lock.
    groups: Vec<Arc<Group>>,
}

impl Holders {
    /// Of the places that waits need next, and of those `also` that flushes do.
    ///
    /// # Safety
    /// The queues are there until it is dropped.
    pub(super) unsafe fn of(
        nexts: &[Next],
        also: impl Iterator<Item = (NonNull<QueueCore>, NonNull<Slot<Queued>>)>,
    ) -> Holders {
        let place = |next: &Next| match next {
            Next::Place { slot, queue } => Some((NonNull::from(&**queue), *slot)),
            _ => None,
        };
        let wanted: HashSet<_> = nexts.iter().filter_map(place).chain(also).collect();
        let slots: HashSet<_> = wanted.iter().map(|(_, slot)| *slot).collect();
        let queues: HashSet<_> = wanted.iter().map(|(queue, _)| *queue).collect();
        let mut pools = HashMap::new();
        for queue in queues {
            // SAFETY: as the caller says.
            let shared = unsafe { queue.as_ref() };
            if shared.rescuer.is_some() {
                continue;
            }
            shared.colours.each(|pwq_slot, pwq| {
                if pwq_slot.tally.in_flight() > 0 && slots.contains(&NonNull::from(&*pwq.slot)) {
                    let key = (current_worker::key(&pwq.group), pwq.pool);
                    pools.entry(key).or_insert_with(|| Arc::clone(&pwq.group));
                }
            });
        }
        let mut holders = Holders::default();
        for ((_, pool), group) in pools {
            if group.all_it_has(pool).is_some() {
                group.see_waiting(pool, |item, ticket, near| {
                    let pwq = &ticket.pwq;
                    let slot = NonNull::from(&*pwq.slot);
                    if ticket.is_counted() && slots.contains(&slot) {
                        holders.lying.push(Holder {
                            slot,
                            item: NonNull::from(item),
                            colour: (NonNull::from(&*pwq.shared), ticket.colour()),
                            group: Arc::clone(&group),
                            pool,
                            near,
                        });
                    }
                });
            }
            holders.groups.push(group);
        }
        holders
    }
}
