//! The pools follow the machine: where their workers run, and how many of them at once, changes
//! with its masks.
//!
//! `following.md` has the steps by name.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::fence::FencePolicy;
use corewise_topology::{CpuQuota, Masks};

use super::group::Group;
use super::pins::PinError;
use super::worker::Worker;
use super::{Action, PoolSpec};
use crate::attributes::QueueKind;
use crate::pool::policy::{self, PoolHome, WantedCpus};

impl<F: FencePolicy> Group<F> {
    /// Moves the workers of each pool to the CPUs that these masks of the machine give. It ignores
    /// an epoch older than the last one, so callers may overtake each other. Queued work stays
    /// queued, and runs there.
    ///
    /// May start threads, and waits for a moment while running threads are moved.
    pub(crate) fn follow(self: &Arc<Self>, masks: &Masks) {
        let wants = match (self.kind, &self.cpus) {
            (QueueKind::Bound, _) => WantedCpus::Own,
            (_, Some(cpus)) => WantedCpus::These(cpus),
            (_, None) => WantedCpus::Housekeeping,
        };
        let limit = self.concurrency.or(masks.cpu_quota.map(CpuQuota::whole_cpus));
        self.follow_to(masks.epoch, limit, |spec| policy::home(&spec.cpus, wants, masks));
    }

    /// Moves the workers to the CPUs of `home`, with `limit` workers that hold a core in all.
    pub(crate) fn follow_to(
        self: &Arc<Self>,
        epoch: u64,
        limit: Option<usize>,
        home: impl Fn(&PoolSpec) -> PoolHome,
    ) {
        let mut refused = Vec::new();
        let actions: Vec<Action> = {
            let mut followed = self.followed.lock();
            if *followed >= epoch {
                return;
            }
            *followed = epoch;
            let homes: Vec<PoolHome> = self.pools.iter().map(|pool| home(&pool.spec)).collect();
            let bases = self.pools.iter().zip(&homes);
            let bases: Vec<_> =
                bases.map(|(pool, home)| policy::base(&pool.spec.cpus, home)).collect();
            let homes = homes.into_iter().zip(policy::shares(limit, &bases)).enumerate();
            homes
                .map(|(index, (home, share))| self.rehome(index, home, share, &mut refused))
                .collect()
        };
        // No lock is held: a spawn handler is the user's, and so is a subscriber.
        for (index, action) in actions.into_iter().enumerate() {
            self.perform(index, action);
        }
        refused.into_iter().for_each(PinError::log);
    }

    /// Handles Late: the calling worker could have run for this long, and was kept from its CPU.
    /// Carries out Roam, if that helps.
    pub(super) fn was_late(&self, me: &Worker, late: Duration) {
        let pins = &self.pools[me.pool].pins;
        if policy::is_late(late) && me.own_cpu.get().is_some() {
            pins.was_late(self.keeper.now());
        }
    }

    /// Carries out Settle for the calling worker, which goes idle, if it has roamed for long
    /// enough.
    pub(super) fn may_settle(&self, me: &Worker, streamed: bool, roamed: Duration) -> bool {
        let pins = &self.pools[me.pool].pins;
        if streamed {
            pins.has_streamed(self.keeper.now());
        }
        let settles = me.own_cpu.roams() && policy::settles(streamed, roamed);
        if settles {
            pins.settle(&me.own_cpu);
        }
        settles
    }

    /// Pins all workers again to the CPUs that they are pinned to already; see
    /// [`Pins::set`](super::pins::Pins).
    pub(crate) fn repin(&self) {
        for pool in &self.pools {
            pool.pins.again();
        }
    }

    /// Carries out Rehome: a transition like any other, except for the threads.
    fn rehome(
        &self,
        index: usize,
        home: PoolHome,
        share: usize,
        refused: &mut Vec<PinError>,
    ) -> Action {
        let pool = &self.pools[index];
        refused.extend(pool.pins.set(home.cpus, home.away));
        let mut inner = pool.inner.lock();
        inner.counts.base = share.max(1);
        inner.away = home.away;
        // Strict work stays in its pod, at any cost.
        inner.aside = share == 0 && self.soft;
        self.settle(index, &mut inner, false)
    }
}
