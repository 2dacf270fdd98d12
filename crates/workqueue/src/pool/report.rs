//! What a pool is at and has done, for those who look on.

use corewise_sync::atomic::Ordering;
use corewise_sync::fence::FencePolicy;

use super::Pool;
use super::group::Group;
use crate::report::PoolReport;

impl Group {
    /// Of all its pools.
    pub(crate) fn reports(&self) -> Vec<PoolReport> {
        (0..self.pools.len()).map(|pool| self.report(pool)).collect()
    }

    /// Of one of them.
    pub(crate) fn report(&self, pool: usize) -> PoolReport {
        let pool = &self.pools[pool];
        let (workers, idle, blocked, waiting) = pool.sizes();
        let (ran, taken_over) = pool.ran();
        let stats = &pool.stats;
        PoolReport {
            scope: self.scope,
            strict: !self.soft,
            pod: pool.spec.pod,
            node: pool.spec.node,
            cpus: pool.cpus(),
            away: pool.reading().away(),
            concurrency: pool.concurrency(),
            workers,
            idle,
            blocked,
            waiting,
            ran,
            taken_over,
            wakeups: stats.wakeups.load(Ordering::Relaxed),
            threads_made: stats.threads_made.load(Ordering::Relaxed),
            caught: stats.caught.load(Ordering::Relaxed),
        }
    }
}

impl<F: FencePolicy> Pool<F> {
    /// Items that its workers have run, and of those the ones taken over from a saturated pod.
    pub(crate) fn ran(&self) -> (u64, u64) {
        // Under the lock: a worker is counted in one place or the other.
        let inner = self.inner.lock();
        let of_workers = inner.workers.values().map(|member| member.worker.ran.read());
        of_workers.fold(self.stats.former.read(), |sum, ran| (sum.0 + ran.0, sum.1 + ran.1))
    }
}
