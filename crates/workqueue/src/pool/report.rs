//! What a pool is at and has done, as plain numbers.

use corewise_sync::atomic::Ordering;
use corewise_topology::{AffinityScope, CpuSet};

use super::group::Group;

/// The state of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolReport {
    /// The scope that its pod is of.
    pub scope: AffinityScope,
    /// Whether its queues are strict.
    pub strict: bool,
    /// Its pod.
    pub pod: u32,
    /// Its node, where the pod lies in one.
    pub node: Option<u32>,
    /// The CPUs that its workers run on now.
    pub cpus: CpuSet,
    /// Whether these are not its pod's: none of those can be used now.
    pub away: bool,
    /// How many of its workers may hold a core at once: its CPUs, or its share of what
    /// [`concurrency`](crate::PoolsBuilder::concurrency) or the CPU quota gives.
    pub concurrency: usize,
    /// Worker threads.
    pub workers: usize,
    /// Of those, parked.
    pub idle: usize,
    /// Of those, inside a blocking region.
    pub blocked: usize,
    /// Items that wait for a worker; those pushed since a worker looked last aren't counted.
    pub waiting: usize,
    /// Items that its workers have run.
    pub ran: u64,
    /// Of those, items taken over from a saturated pod.
    pub taken_over: u64,
    /// Parked workers woken.
    pub wakeups: u64,
    /// Threads made.
    pub threads_made: u64,
    /// Times that a worker was found to keep a core from others: its item computed for long, or
    /// slept without saying so.
    pub caught: u64,
}

impl PoolReport {
    pub(crate) fn of(group: &Group) -> Vec<PoolReport> {
        (0..group.pools.len()).map(|pool| PoolReport::of_pool(group, pool)).collect()
    }

    pub(crate) fn of_pool(group: &Group, pool: usize) -> PoolReport {
        let pool = &group.pools[pool];
        let (workers, idle, blocked, waiting) = pool.sizes();
        let (ran, taken_over) = pool.ran();
        let stats = &pool.stats;
        PoolReport {
            scope: group.scope,
            strict: !group.soft,
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
