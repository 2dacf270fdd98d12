//! Reports on worker pools and their queues, as plain data.
//!
//! A dump is collected by reading: nothing stops for it. It holds one lock at a time, that of a
//! pool or of a list, while it copies a few numbers. Each figure is exact for its own moment, and
//! the moments of one dump lie close together. The model is the kernel's `wq_dump.py`.

use std::time::Duration;

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_topology::{AffinityScope, CpuQuota, CpuSet, Pod};

use crate::attributes::QueueKind;

/// Counters of one queue. If they are read while work flows, each is exact for a slightly different
/// moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QueueStats {
    /// Instances ever queued.
    pub queued: u64,
    /// Instances that are over: run, or cancelled.
    pub completed: u64,
    /// Number of the queued instances that were cancelled.
    pub cancelled: u64,
    /// Time that instances have run, blocked times included; 0 unless the queue is
    /// [timed](crate::QueueBuilder::timed).
    pub run_time: Duration,
    /// Instances that ran away from the pod they were queued on.
    pub overflowed: u64,
    /// Times that an instance was found to compute for long, so that other work was started beside
    /// it.
    pub cpu_intensive: u64,
    /// Times that an instance was found to sleep undeclared, so that other work was started in its
    /// place.
    pub blocked_untold: u64,
    /// Times that its rescuer was called.
    pub maydays: u64,
    /// Instances that were run by its rescuer.
    pub rescued: u64,
    /// Instances that were run by their waiters, instead of by a worker.
    pub taken_back: u64,
}

impl QueueStats {
    /// Instances queued and not over, of one reading.
    pub(crate) fn in_flight(&self) -> u64 {
        self.queued - self.completed
    }
}

/// The state of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolReport {
    /// The scope of its pod.
    pub scope: AffinityScope,
    /// True if the pool's queues are strict.
    pub strict: bool,
    /// Its pod.
    pub pod: u32,
    /// Its node, if the pod lies in one.
    pub node: Option<u32>,
    /// The CPUs that its workers run on now.
    pub cpus: CpuSet,
    /// True if these CPUs are not the pod's, since none of those is usable now.
    pub away: bool,
    /// Number of its workers that may hold a core at once: its CPUs, or its share of
    /// [`concurrency`](crate::PoolsBuilder::concurrency) or of the CPU quota.
    pub concurrency: usize,
    /// Worker threads.
    pub workers: usize,
    /// Number of workers that are parked.
    pub idle: usize,
    /// Number of workers inside a blocking region.
    pub blocked: usize,
    /// Items that wait for a worker; those pushed since a worker looked last aren't counted.
    pub waiting: usize,
    /// Items that its workers have run.
    pub ran: u64,
    /// Number of items that were taken over from a saturated pod.
    pub taken_over: u64,
    /// Parked workers woken.
    pub wakeups: u64,
    /// Threads made.
    pub threads_made: u64,
    /// Times that a worker was found to keep a core from others: its item computed for long, or
    /// slept undeclared.
    pub caught: u64,
}

/// The result of [`WorkerPools::dump`](crate::WorkerPools::dump). `corewise dump` writes it as
/// tables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Dump {
    /// The CPUs that may be used: online and allowed.
    pub cpus: CpuSet,
    /// The CPUs for general work.
    pub housekeeping: CpuSet,
    /// The CPU time that the process may use, if that is limited.
    pub cpu_quota: Option<CpuQuota>,
    /// A number that changes whenever one of these does.
    pub epoch: u64,
    /// All scopes, from the finest to the coarsest.
    pub scopes: Vec<ScopeDump>,
    /// All pools. Their numbers hold within this dump only.
    pub pools: Vec<PoolDump>,
    /// All queues, in the order in which they were made.
    pub queues: Vec<QueueDump>,
    /// Instances that the workers run, in the order of pools and workers.
    pub running: Vec<RunningDump>,
}

/// The division of the machine by one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeDump {
    /// The scope.
    pub scope: AffinityScope,
    /// True if queues have this scope by default.
    pub default: bool,
    /// Its pods by number.
    pub pods: Vec<Pod>,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolDump {
    /// Its number: its place in the list of pools.
    pub id: usize,
    /// Kind of the queues that the pool is for; ordered ones share pools with unbound ones.
    pub kind: QueueKind,
    /// The wanted niceness of its workers' threads.
    pub nice: i32,
    /// Number of queues that use the pool, or have work left in it.
    pub links: usize,
    /// Its workers and their counters.
    pub state: PoolReport,
    /// Time that its workers have spent on CPUs, those that have left included. The last few
    /// milliseconds of a running worker may be missing.
    pub cpu_time: Duration,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QueueDump {
    /// Its number in its worker pools: 1 for the first one ever made, and never used again.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Kind of the queue.
    pub kind: QueueKind,
    /// Scope of its pods.
    pub scope: AffinityScope,
    /// True if its work never leaves its pod.
    pub strict: bool,
    /// The CPUs in its attributes; `None`: those for general work.
    pub cpus: Option<CpuSet>,
    /// The niceness in its attributes.
    pub nice: i32,
    /// Maximum of its active instances; `None`: any number.
    pub max_active: Option<usize>,
    /// Number of closures that [`try_spawn`](crate::Workqueue::try_spawn) puts on it at once;
    /// `None`: any number.
    pub capacity: Option<usize>,
    /// Number of closures that it gave back because it was full.
    pub refused: u64,
    /// Its counters, over all pools.
    pub stats: QueueStats,
    /// Instances queued and not over, held back ones included.
    pub in_flight: u64,
    /// Number of pending instances that workers run.
    pub running: u64,
    /// Delayed items whose time hasn't come. They aren't in flight.
    pub delayed: usize,
    /// True if it measures how long its instances run.
    pub timed: bool,
    /// True if it has a rescuer.
    pub rescuer: bool,
    /// The slots that count its active instances, if they are counted.
    pub slots: Vec<SlotDump>,
    /// Each pool that it uses, or has work left in.
    pub links: Vec<LinkDump>,
}

/// One queue in one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkDump {
    /// The pool, by [`PoolDump::id`].
    pub pool: usize,
    /// The queue's counters there.
    pub stats: QueueStats,
    /// Instances queued there and not over.
    pub in_flight: u64,
}

/// A place where a queue's active instances are counted against a maximum.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotDump {
    /// The scope that the maximum holds for.
    pub place: SlotPlace,
    /// Number of active instances: let through to a pool and not over.
    pub active: usize,
    /// Maximum of active instances; `None`: any number.
    pub max: Option<usize>,
    /// Number of instances that are held back.
    pub held: usize,
}

/// The scope of a maximum of active instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotPlace {
    /// The whole queue.
    Queue,
    /// One NUMA node.
    Node(u32),
    /// Pods that lie in no single node.
    NoNode,
    /// One CPU's pool, by its pod.
    Pod(u32),
}

/// An instance that a worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningDump {
    /// The pool, by [`PoolDump::id`].
    pub pool: usize,
    /// The worker's number in its pool.
    pub worker: u32,
    /// The kernel's number of its thread.
    pub thread: Option<u32>,
    /// Number of instances that the worker has started, this one included: the same number in two
    /// dumps means the same instance.
    pub instance: u64,
    /// The queue, by [`QueueDump::id`].
    pub queue: u64,
    /// The name of the function, closure or future, as the compiler has it.
    pub function: &'static str,
    /// The line of source that queued it, `FILE:LINE:COLUMN`.
    pub site: String,
}

impl QueueDump {
    /// Instances ever started.
    pub fn started(&self) -> u64 {
        let stats = &self.stats;
        // The running items were read a moment before the counters.
        (stats.completed.saturating_sub(stats.cancelled) + self.running).min(stats.queued)
    }
}

impl Dump {
    /// Leaves out the queues for which `keep` returns false, and their running instances. The pools
    /// stay as they are.
    pub fn retain_queues(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.queues.retain(|queue| keep(&queue.name));
        let kept: Vec<u64> = self.queues.iter().map(|queue| queue.id).collect();
        self.running.retain(|running| kept.contains(&running.queue));
    }
}

/// Counters of a pwq, or of all those that are gone.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// A: statistics: instances queued here that ran in another pod.
    pub(crate) overflowed: AtomicU64,
    /// A: statistics: instances found to compute for long.
    pub(crate) cpu_intensive: AtomicU64,
    /// A: statistics: instances found asleep.
    pub(crate) blocked_untold: AtomicU64,
    /// A: statistics: calls for the rescuer.
    pub(crate) maydays: AtomicU64,
    /// A: statistics: instances run by the rescuer.
    pub(crate) rescued: AtomicU64,
    /// A: statistics: instances queued here that were cancelled.
    pub(crate) cancelled: AtomicU64,
    /// A: statistics: nanoseconds that instances queued here have run, if the queue is timed.
    pub(crate) run_ns: AtomicU64,
    /// A: statistics: instances queued here that were run by their waiters.
    pub(crate) taken_back: AtomicU64,
}

impl Counters {
    /// Adds the counts of this.
    pub(crate) fn add_to(&self, stats: &mut QueueStats) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.overflowed += read(&self.overflowed);
        stats.cpu_intensive += read(&self.cpu_intensive);
        stats.blocked_untold += read(&self.blocked_untold);
        stats.maydays += read(&self.maydays);
        stats.rescued += read(&self.rescued);
        stats.cancelled += read(&self.cancelled);
        stats.run_time += Duration::from_nanos(read(&self.run_ns));
        stats.taken_back += read(&self.taken_back);
    }

    /// Adds the counts of a pwq that is gone.
    pub(crate) fn keep(&self, of: &Counters) {
        let counters = [
            (&self.overflowed, &of.overflowed),
            (&self.cancelled, &of.cancelled),
            (&self.run_ns, &of.run_ns),
            (&self.taken_back, &of.taken_back),
        ];
        for (kept, counter) in counters {
            kept.fetch_add(counter.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
