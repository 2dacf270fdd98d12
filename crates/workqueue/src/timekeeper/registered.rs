//! A queue, as its pools and their timekeeper know it: they lie below, and know nothing else of queues.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use corewise_sync::CleanAt;

use super::rescuer::Rescuer;
use crate::report::QueueDump;
use crate::report::counters::Counters;

/// What is asked of a queue from below.
pub(crate) trait Registered: Send + Sync {
    /// Its number in its worker pools, never used again; not 0.
    fn id(&self) -> u64;
    /// The name for reports.
    fn name(&self) -> &str;
    /// The rescuer that runs its work where no worker can.
    fn rescuer(&self) -> Option<&Rescuer>;
    /// Where the timekeeper and the rescuer count.
    fn counters(&self) -> &Counters;
    /// Instances that were queued and aren't over (a moment ago).
    fn in_flight(&self) -> u64;
    /// The same maximum, where other CPUs can be used now: then `settle` has to follow.
    fn divide_again(&self);
    /// Accepts nothing more; what is held back goes on to be let through: `settle` has to follow.
    fn close(&self);
    /// Lets those through that may go since one of these. No lock is held: it may have to make threads.
    fn settle(&self);
    /// Cancels the futures that wait to be woken: the queue takes nothing any more.
    fn cancel_waiting(&self);
    /// What is told of it. `pool` numbers its pools: by what stands for the group, and the place in there.
    fn dump(&self, pool: &dyn Fn(usize, usize) -> Option<usize>) -> QueueDump;
}

/// The queues of some worker pools.
#[derive(Default)]
pub(crate) struct Queues {
    /// By number. Those that are gone are taken out now and then.
    all: BTreeMap<u64, Weak<dyn Registered>>,
    clean_at: CleanAt,
    pub(crate) closed: bool,
}

impl Queues {
    pub(crate) fn add(&mut self, queue: &Arc<dyn Registered>) {
        let clean = |all: &mut BTreeMap<_, Weak<dyn Registered>>| {
            all.retain(|_, one| one.strong_count() > 0)
        };
        self.clean_at.before_one_more(&mut self.all, BTreeMap::len, clean);
        self.all.insert(queue.id(), Arc::downgrade(queue));
    }

    /// By number. The handle returned may be the last one: it is not to be dropped under the lock.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<dyn Registered>> {
        self.all.get(&id)?.upgrade()
    }

    /// Those that there are, in the order of their numbers; as [`Queues::get`].
    pub(crate) fn alive(&self) -> Vec<Arc<dyn Registered>> {
        self.all.values().filter_map(Weak::upgrade).collect()
    }
}
