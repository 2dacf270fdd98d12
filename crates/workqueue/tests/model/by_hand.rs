//! Pools and workers that unit tests and models drive by hand, in place of threads.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::CachePadded;
use corewise_sync::fence::FencePolicy;
use corewise_topology::{AffinityScope, CpuSet};

use crate::model::OfModel;
use crate::pool::PoolSpec;
use crate::pool::alarm::{Alarm, Keeper, PoolKeeper};
use crate::pool::group::{Group, Setup, Step};
use crate::pool::pins::Pinning;
use crate::pool::policy::Idle;
use crate::pool::spawn;
use crate::pool::spawn::Spawner;
use crate::pool::worker::Threads;
use crate::pool::worker::Worker;
use crate::pwq::flush::Colours;
use crate::pwq::slot::{CountPolicy, RealCounts, Tally};
use crate::pwq::slot::{PwqSlot, SlotContent};
use crate::task::ticket::QueueHome;

impl Setup {
    /// Returns the setup of soft pools, with workers and a timekeeper that are driven by hand.
    pub(crate) fn by_hand(scope: AffinityScope) -> Setup {
        Setup {
            scope,
            soft: true,
            concurrency: None,
            pinning: Pinning::Nowhere,
            idle: Idle::Sleep,
            idle_timeout: Duration::ZERO,
            spawner: Spawner::default(),
            threads: Threads::new(usize::MAX),
            keeper: Keeper {
                alarm: Arc::new(CachePadded::new(Alarm::new())),
                keeper: Arc::new(NoKeeper),
            },
            niceness: spawn::niceness(),
        }
    }
}

/// A keeper that does nothing: nobody looks after the pools, and time stands still.
struct NoKeeper;

impl PoolKeeper for NoKeeper {
    fn wake(self: Arc<Self>) {}

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn may_retry(&self, _refused: Duration) -> bool {
        false
    }

    fn has_rescuers(&self) -> bool {
        false
    }

    fn group_gone(&self) {}
}

impl PoolSpec {
    /// `pools` pods of `cpus` CPUs each, which make no threads beyond one a CPU.
    pub(crate) fn by_hand(pools: usize, cpus: u32) -> Vec<PoolSpec> {
        let spec = |pod: usize| PoolSpec {
            pod: u32::try_from(pod).unwrap_or(u32::MAX),
            cpus: CpuSet::full(cpus),
            node: None,
            max: 0,
            near: (0..pools).filter(|other| *other != pod).collect(),
        };
        (0..pools).map(spec).collect()
    }
}

impl Worker {
    /// Lets it reserve this many items at once from the beginning.
    pub(crate) fn takes_at_once(&self, most: u64) {
        self.batch.with(|batch| batch.most = most);
    }
}

impl<F: FencePolicy> Group<F> {
    /// Creates a worker without a thread of its own.
    pub(crate) fn enlist(self: &Arc<Self>, index: usize) -> Arc<Worker> {
        self.hire(index, &mut self.pools[index].inner.lock())
    }

    /// Makes it run one tiny item after the other, which is enough.
    pub(crate) fn takes_a_stream(&self, me: &Worker) {
        let mut inner = self.pools[me.pool].inner.lock();
        me.counts_as_taker(&mut inner.counts, true);
        inner.counts.enough = inner.counts.takers;
        self.publish(me.pool, &inner);
    }

    /// Takes one bounded step of a worker: takes something and runs it, or goes idle.
    pub(crate) fn step(self: &Arc<Self>, me: &Arc<Worker>) -> Step {
        if self.works(me) { Step::Again } else { self.go_idle(me) }
    }
}

impl<C: CountPolicy, L: SlotContent> Colours<C, L> {
    /// Counts an instance in; its colour.
    pub(crate) fn count(&self, tally: &Tally, stripe: u32) -> u8 {
        let colour = self.colour();
        tally.pair(stripe, colour).enter();
        colour
    }

    /// Waits for every instance that was queued before the call. May block.
    pub(crate) fn flush(&self) {
        self.flush_by(|event| event.wait());
    }

    /// Carries out Leave, for a caller that keeps the colours anyway.
    pub(crate) fn leave(&self, slot: NonNull<PwqSlot<L>>, stripe: u32, colour: u8) {
        // SAFETY: the caller's instance is in flight.
        let pair = unsafe { slot.as_ref() }.tally.pair(stripe, colour);
        if !pair.leave::<C>(1) {
            self.leave_watched(slot, pair, 1, colour);
        }
    }
}

impl SlotContent for () {
    fn home(&self) -> QueueHome {
        QueueHome { queue: 0, timed: false, schedule: OfModel::<RealCounts>::NEW }
    }

    fn collected(&self) {}
}
