//! Workers that are exempt: they run an item, but don't count for the pod's cores, so that another
//! may start. Either they declared it (a blocking region, a long run), or the timekeeper caught
//! them.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::Ordering;
use corewise_sync::fence::FencePolicy;

use crate::pool::group::Group;
use crate::pool::policy::Counts;
use crate::pool::worker::{Batch, Worker};
use crate::pool::{PoolState, PoolStats};
use crate::task::running::RunSnapshot;

/// A reason why a worker is exempt; a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Exemption {
    /// The worker is inside a blocking region.
    Region = 1,
    /// The timekeeper found that its item computes without a pause.
    Intensive = 1 << 1,
    /// The timekeeper found that its item sleeps undeclared.
    Asleep = 1 << 2,
    /// The worker declared that its present work may compute or sleep for long.
    Long = 1 << 3,
}

/// The exemptions that end with the item.
const OF_THE_ITEM: u32 = Exemption::Intensive as u32 | Exemption::Asleep as u32;

/// The state of a pool that the timekeeper sees in one look.
pub(crate) struct PoolSample {
    /// Items taken so far.
    pub(crate) taken: u64,
    /// True if waiting work has no worker and can't get one: no thread can be made.
    pub(crate) helpless: bool,
    /// Time when the system last refused a thread, if a retry is due.
    pub(crate) refused: Option<Duration>,
    /// The workers that hold a core, and their items.
    pub(crate) at_work: Vec<(Arc<Worker>, RunSnapshot)>,
    /// Workers that were found asleep, and don't count for that reason alone. Some may have woken
    /// up.
    pub(crate) found_asleep: Vec<Arc<Worker>>,
    /// Number of workers that may hold a core at once.
    pub(crate) base: usize,
}

impl Worker {
    /// Returns true if it is exempt for this reason (a moment ago, without the pool's lock).
    pub(crate) fn is_exempt(&self, why: Exemption) -> bool {
        self.exemptions.load(Ordering::Relaxed) & why as u32 != 0
    }

    /// Returns true if it has exemptions that end with its item. Called by the worker itself,
    /// before it takes the next one.
    #[inline]
    pub(super) fn has_item_exemptions(&self) -> bool {
        self.exemptions.load(Ordering::Relaxed) & OF_THE_ITEM != 0
    }

    /// Returns true if it is known to sleep in its item. The caller holds the pool's lock.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_exempt(Exemption::Region) || self.is_exempt(Exemption::Asleep)
    }

    /// Returns how long its blocking region has lasted, if it is in one and that is known. Called
    /// under the pool's lock.
    pub(super) fn blocks_for(&self) -> Option<Duration> {
        let since = self.blocked.load(Ordering::Relaxed);
        (self.is_exempt(Exemption::Region) && since != 0)
            .then(|| Duration::from_nanos(self.age().saturating_sub(since)))
    }

    /// Changes its exemptions, and the counts with them, under the pool's lock.
    fn set_exemptions(&self, counts: &mut Counts, change: impl FnOnce(u32) -> u32) {
        let old = self.exemptions.load(Ordering::Relaxed);
        let new = change(old);
        self.exemptions.store(new, Ordering::Relaxed);
        if new != 0 {
            // Waiting items must not be left to it.
            self.counts_as_taker(counts, false);
        }
        for (bits, by) in [(old, -1), (new, 1)] {
            let count = match bits {
                0 => continue,
                bits if bits & Exemption::Region as u32 != 0 => &mut counts.blocked,
                _ => &mut counts.intensive,
            };
            *count = count.saturating_add_signed(by);
        }
    }

    /// Drops its exemptions, since it ceases to be a worker. The caller holds the pool's lock.
    pub(super) fn drop_exemptions(&self, counts: &mut Counts) {
        self.set_exemptions(counts, |_| 0);
    }

    /// Drops the exemptions that end with its item, which is over. Called under the pool's lock.
    pub(super) fn item_is_over(&self, counts: &mut Counts) {
        if self.has_item_exemptions() {
            self.set_exemptions(counts, |bits| bits & !OF_THE_ITEM);
        }
    }
}

impl PoolState {
    /// Returns true if items wait, and no worker is on its way to them.
    fn is_stuck<F: FencePolicy>(&self, pool: &super::Pool<F>) -> bool {
        let counts = self.counts();
        pool.has_more() && (counts.saturated() || counts.has_enough() || self.making > 0)
    }
}

impl PoolState {
    /// Returns true if a core is free for the work of a stuck pool, so that it only lacks a thread.
    fn is_helpless(&self) -> bool {
        let counts = self.counts();
        self.making > 0 || counts.saturated() && counts.has_core()
    }
}

impl<F: FencePolicy> Group<F> {
    /// Notes that a worker is about to block: its core is free for another.
    pub(crate) fn begin_blocking(self: &Arc<Self>, me: &Worker) {
        me.batch.with(Batch::forgets);
        self.bundle_mine(me);
        let action = {
            let mut inner = self.pools[me.pool].inner.lock();
            me.set_exemptions(&mut inner.counts, |bits| bits | Exemption::Region as u32);
            self.settle(me.pool, &mut inner, true)
        };
        self.perform(me.pool, action);
        me.blocks();
    }

    /// Notes that the worker continues. If its replacement is busy, there is one active worker too
    /// many for a while: the one that ends its item first goes idle (`Counts::may_take`).
    pub(crate) fn end_blocking(self: &Arc<Self>, me: &Worker) {
        me.has_blocked();
        let action = {
            let mut inner = self.pools[me.pool].inner.lock();
            me.set_exemptions(&mut inner.counts, |bits| bits & !(Exemption::Region as u32));
            self.settle(me.pool, &mut inner, false)
        };
        self.pools[me.pool].pins.come_back(&me.own_cpu);
        self.perform(me.pool, action);
    }

    /// Notes that a worker begins work that may compute or sleep. It holds no core for its pool
    /// meanwhile, and keeps its own CPU, if it has one.
    pub(crate) fn begin_long(self: &Arc<Self>, me: &Worker) {
        self.bundle_mine(me);
        let action = {
            let mut inner = self.pools[me.pool].inner.lock();
            me.set_exemptions(&mut inner.counts, |bits| bits | Exemption::Long as u32);
            self.settle(me.pool, &mut inner, true)
        };
        self.perform(me.pool, action);
    }

    /// Ends that; see [`Group::end_blocking`].
    pub(crate) fn end_long(self: &Arc<Self>, me: &Worker) {
        let action = {
            let mut inner = self.pools[me.pool].inner.lock();
            me.set_exemptions(&mut inner.counts, |bits| bits & !(Exemption::Long as u32));
            self.settle(me.pool, &mut inner, false)
        };
        self.perform(me.pool, action);
    }

    /// Returns true if a pool has work and no worker for it now.
    pub(crate) fn is_stuck(&self, index: usize) -> bool {
        let pool = &self.pools[index];
        pool.inner.lock().is_stuck(pool)
    }

    /// Returns true if a pool has work that finds no worker, and no thread can be made for one.
    pub(crate) fn is_helpless(&self, index: usize) -> bool {
        let pool = &self.pools[index];
        let inner = pool.inner.lock();
        inner.is_stuck(pool) && inner.is_helpless()
    }

    /// Inspects a pool that has work and no worker for it now; returns `None` for any other pool.
    pub(crate) fn look(self: &Arc<Self>, index: usize) -> Option<PoolSample> {
        self.look_at_takers(index);
        let pool = &self.pools[index];
        let inner = pool.inner.lock();
        if !inner.is_stuck(pool) {
            return None;
        }
        let at_work = |worker: &Arc<Worker>| {
            let exempt = worker.exemptions.load(Ordering::Relaxed) != 0;
            (!exempt).then(|| worker.shown.read()).flatten().map(|s| (Arc::clone(worker), s))
        };
        let workers = || inner.workers.values().map(|member| &member.worker);
        let found_asleep =
            |worker: &Worker| worker.exemptions.load(Ordering::Relaxed) == Exemption::Asleep as u32;
        Some(PoolSample {
            taken: pool.lists.taken(),
            helpless: inner.is_helpless(),
            refused: inner.refused,
            at_work: workers().filter_map(at_work).collect(),
            found_asleep: workers().filter(|worker| found_asleep(worker)).map(Arc::clone).collect(),
            base: inner.counts.base,
        })
    }

    /// Takes workers that have run nothing since the last look off the takers: they don't run one
    /// tiny item after the other any more, or have lost their CPU.
    fn look_at_takers(self: &Arc<Self>, index: usize) {
        let pool = &self.pools[index];
        let action = {
            let mut guard = pool.inner.lock();
            let inner = &mut *guard;
            if !inner.counts.has_enough() {
                return;
            }
            for member in inner.workers.values() {
                let worker = &member.worker;
                if worker.is_taker() && worker.has_run_nothing() {
                    worker.counts_as_taker(&mut inner.counts, false);
                }
            }
            self.settle(index, inner, false)
        };
        self.perform(index, action);
    }

    /// Returns how long a worker's blocking region has lasted, if it is in one and that is known.
    pub(crate) fn blocked_for(&self, worker: &Worker) -> Option<Duration> {
        let _inner = self.pools[worker.pool].inner.lock();
        worker.blocks_for()
    }

    /// Returns the workers of a pool that ran an item a moment ago, and these items.
    pub(crate) fn running(&self, index: usize) -> Vec<(Arc<Worker>, RunSnapshot)> {
        let inner = self.pools[index].inner.lock();
        let mut running: Vec<_> = (inner.workers.values())
            .filter_map(|member| Some((Arc::clone(&member.worker), member.worker.shown.read()?)))
            .collect();
        running.sort_by_key(|(worker, _)| worker.id);
        running
    }

    /// Exempts a worker that was caught with this instance, if it still runs the instance and work
    /// still waits. Returns true if so.
    pub(crate) fn exempt(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        instance: u64,
        why: Exemption,
    ) -> bool {
        let pool = &self.pools[worker.pool];
        let caught;
        let action = {
            let mut inner = pool.inner.lock();
            let at_it = || worker.shown.read().is_some_and(|shown| shown.instance == instance);
            let exempt = worker.exemptions.load(Ordering::Relaxed) != 0;
            // The core of a sleeping worker is free, also if a worker is on its way to another
            // core: that one's item may sleep as well.
            let waits = match why {
                Exemption::Asleep => pool.has_more(),
                _ => inner.is_stuck(pool),
            };
            if !at_it() || exempt || !waits {
                return false;
            }
            worker.set_exemptions(&mut inner.counts, |bits| bits | why as u32);
            // The worker reads its exemptions when an item is over, without the lock: it may have
            // done so just before. One that this misses is exempt until the worker's next look.
            F::full();
            caught = at_it();
            if caught {
                PoolStats::count(&pool.stats.caught, 1);
            } else {
                worker.set_exemptions(&mut inner.counts, |bits| bits & !(why as u32));
            }
            self.settle(worker.pool, &mut inner, false)
        };
        self.perform(worker.pool, action);
        caught
    }

    /// Asks the system for a thread again, if it refused one and work waits.
    pub(crate) fn retry(self: &Arc<Self>, index: usize) {
        let pool = &self.pools[index];
        let action = {
            let mut inner = pool.inner.lock();
            if inner.refused.is_none() || !inner.is_stuck(pool) {
                return;
            }
            inner.refused = None;
            self.settle(index, &mut inner, false)
        };
        self.perform(index, action);
    }
}
