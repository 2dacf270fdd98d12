//! What keeps the flush of a queue from its end: the instances that it waits for, where no worker runs them.
//!
//! Seen of all queues that somebody on the list flushes, each pool and each line of what is held back
//! once. Only pools are looked through for which no worker can come.

use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::Completion;

use crate::pool::current_worker;
use crate::pool::group::Group;
use crate::pwq::flush::Awaited;
use crate::pwq::limit_slot::Slot;
use crate::pwq::queue_core::QueueCore;
use crate::task::header::Queued;

/// The instances of a queue that have a colour.
pub(super) type Colour = (NonNull<QueueCore>, u8);

/// What was seen of the queues that are flushed.
#[derive(Default)]
pub(super) struct Flushed {
    /// What each flush waits for, by its event.
    pub(super) flushes: HashMap<NonNull<Completion>, Awaited>,
    /// Of these, some lie in pools.
    pub(super) lying: Vec<Lying>,
    /// Dropped with this, and not under a lock.
    groups: Vec<Arc<Group>>,
    /// Of these, some are held back there.
    pub(super) held: HashSet<(Colour, NonNull<Slot<Queued>>)>,
}

/// Some instances that lie in a pool for which no worker can come.
pub(super) struct Lying {
    pub(super) colour: Colour,
    pub(super) group: Arc<Group>,
    pub(super) pool: usize,
    /// Who flushes the queue would find one.
    pub(super) near: bool,
}

impl Flushed {
    /// # Safety
    /// The queues are there until it is dropped.
    pub(super) unsafe fn of(queues: &HashSet<NonNull<QueueCore>>) -> Flushed {
        let mut flushed = Flushed::default();
        let mut pools = HashMap::new();
        let mut lines = HashSet::new();
        for queue in queues {
            // SAFETY: as the caller says.
            let shared = unsafe { queue.as_ref() };
            flushed.flushes.extend(shared.colours.awaited());
            shared.colours.each(|pwq_slot, pwq| {
                if pwq_slot.tally.in_flight() == 0 {
                    return;
                }
                let slot = NonNull::from(&*pwq.slot);
                if lines.insert((slot, pwq.line())) {
                    let colours = pwq.colours_held();
                    flushed.held.extend(colours.into_iter().map(|held| ((*queue, held), slot)));
                }
                if shared.rescuer.is_none() {
                    let key = (current_worker::key(&pwq.group), pwq.pool);
                    pools.entry(key).or_insert_with(|| Arc::clone(&pwq.group));
                }
            });
        }
        for ((_, pool), group) in pools {
            flushed.groups.push(Arc::clone(&group));
            if group.all_it_has(pool).is_none() {
                continue;
            }
            let mut lying = HashMap::new();
            group.see_waiting(pool, |_, ticket, near| {
                let queue = NonNull::from(&*ticket.pwq.shared);
                if queues.contains(&queue) {
                    *lying.entry((queue, ticket.colour())).or_insert(false) |= near;
                }
            });
            let of_pool = lying.into_iter().map(|(colour, near)| {
                let group = Arc::clone(&group);
                Lying { colour, group, pool, near }
            });
            flushed.lying.extend(of_pool);
        }
        flushed
    }
}
