//! Sets up [`WorkerPools`].

use std::fmt;
use std::io;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_sync::atomic::AtomicU64;
use corewise_topology::{Change, DEFAULT_SHARD_SIZE, Machine};

use super::{Inner, WorkerPools};
use crate::pool::policy::Idle;
use crate::pool::spawn;
use crate::pool::spawn::{Spawner, WorkerThread};
use crate::pool::worker::Threads;
use crate::pools::Groups;
use crate::timekeeper::follow::Follower;
use crate::timekeeper::stall::StallReport;
use crate::timekeeper::{Settings, Timekeeper};

/// Maximum of threads of one pool, blocked ones included.
pub const DEFAULT_MAX_WORKERS: usize = 256;
/// Maximum of threads of all pools together, beside some for each pool in any case: as many as
/// tokio has for blocking work. More keep no disk busier. Each costs some 30 KiB, and containers
/// often may have only a few thousand.
pub const DEFAULT_MAX_THREADS: usize = 512;
/// Time that a surplus worker stays idle before it leaves. The worker that parked last is woken
/// first. So a worker that leaves wasn't needed all that time, whatever the others did. One worker
/// a CPU may stay.
pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Sets up [`WorkerPools`]; see the constants of this module for the defaults.
#[must_use = "`build` makes the pools"]
pub struct PoolsBuilder {
    pub(super) machine: Machine,
    shard_size: u32,
    pub(super) concurrency: Option<usize>,
    pub(super) max_workers: usize,
    max_threads: usize,
    pub(super) idle: Idle,
    pub(super) idle_timeout: Duration,
    pub(super) spawner: Spawner,
    time: Settings,
    /// Settings of a test.
    keeper: Option<Arc<Timekeeper>>,
    follow: bool,
}

impl PoolsBuilder {
    /// Sets how many cores a shard aims for (scope `cache_shard`); 0 counts as 1. Default
    /// [`DEFAULT_SHARD_SIZE`](corewise_topology::DEFAULT_SHARD_SIZE).
    pub fn shard_size(mut self, cores: u32) -> Self {
        self.shard_size = cores;
        self
    }

    /// Sets how many core-holding items the pools of a set of attributes run at once. Items that
    /// block or compute for long don't count. The number is divided among the pods by CPUs, at most
    /// one a CPU. A pod without a share runs only work for its named CPUs or node, one item at a
    /// time, and so does each pod of a strict queue. 0 counts as 1.
    ///
    /// Default: the number of CPUs or, if the process has a CPU quota, the quota's worth of CPUs,
    /// whichever is less. The default follows the [`Machine`]. With more threads the quota would be
    /// used up before its period is over, and all items would wait for the next period. An explicit
    /// number holds whatever the quota is: `usize::MAX` is all CPUs.
    pub fn concurrency(mut self, items: usize) -> Self {
        self.concurrency = Some(items);
        self
    }

    /// Sets the maximum of threads of one pool, blocked ones included; at least one a CPU of the
    /// pod. Default [`DEFAULT_MAX_WORKERS`].
    pub fn max_workers(mut self, threads: usize) -> Self {
        self.max_workers = threads;
        self
    }

    /// Sets the maximum of worker threads of all pools together, blocked ones included. Each pool
    /// may always have eight more than may hold a core. At the limit, work that needs a thread
    /// waits until an item that blocks is over. The pools log this once and retry each second.
    /// Default [`DEFAULT_MAX_THREADS`].
    pub fn max_threads(mut self, threads: usize) -> Self {
        self.max_threads = threads;
        self
    }

    /// Sets what a worker without work does before it sleeps: sleep at once, look out for work
    /// while that pays, or do so for a given time. Default: [`Idle::Hybrid`].
    pub fn idle(mut self, idle: Idle) -> Self {
        self.idle = idle;
        self
    }

    /// Sets how long a worker that its pod doesn't need stays idle before its thread ends. Default
    /// [`DEFAULT_IDLE_TIMEOUT`].
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets how long an item may compute without a pause before other work may start beside it, as
    /// if the item had called [`long_running`](corewise_sync::context::long_running). Such an item
    /// is counted, and a function that is caught often is logged (at debug level). Items are
    /// sampled only while work waits for a core. The first sample comes after 100 us: two samples
    /// that far apart find an item that sleeps undeclared. While no such item is found, samples
    /// become rarer, up to this time and to 10 ms (and at least to 1 ms). A sample takes the
    /// timekeeper's thread some 10 us. Default
    /// [`DEFAULT_CPU_INTENSIVE_AFTER`](crate::DEFAULT_CPU_INTENSIVE_AFTER). Zero turns sampling
    /// off, also for items that block undeclared.
    pub fn cpu_intensive_after(mut self, time: Duration) -> Self {
        self.time.cpu_intensive_after = time;
        self
    }

    /// Sets the time after which a pool is reported as stalled, if work waits and no worker takes
    /// any: in the log, and to [`on_stall`](PoolsBuilder::on_stall). The report is repeated each
    /// time the stall has lasted that long once more. Default
    /// [`DEFAULT_STALL_AFTER`](crate::DEFAULT_STALL_AFTER); zero: never.
    pub fn stall_after(mut self, time: Duration) -> Self {
        self.time.stall_after = time;
        self
    }

    /// Sets a callback that gets the report of each stall, beside the log. The callback runs on the
    /// timekeeper's thread (`cw-time`), which does nothing else meanwhile, so the callback should
    /// be quick. A panic in the callback is logged. The callback is dropped with the pools.
    pub fn on_stall(mut self, callback: impl Fn(&StallReport) + Send + Sync + 'static) -> Self {
        self.time.on_stall = Some(Arc::new(callback));
        self
    }

    #[cfg(test)]
    pub(crate) fn keeper(mut self, keeper: &Arc<Timekeeper>) -> Self {
        self.keeper = Some(Arc::clone(keeper));
        self
    }

    /// Sets how worker threads are made. `handler` gets each worker that needs a thread, and has to
    /// call its [`run`](WorkerThread::run) on one, now or soon. Default: `std::thread::Builder`,
    /// with the worker's name.
    ///
    /// The handler is called with no lock held, on the thread that needs a worker: one that queues,
    /// one that builds a queue, a worker, or the timekeeper. If the handler fails, panics, or drops
    /// the worker, the pool continues with the workers that it has. It retries when one of them has
    /// taken work, and every second while work waits. The handler doesn't make the timekeeper's
    /// thread or the rescuers'. [`WorkerPools::shutdown`] waits until the workers have left their
    /// pools, and not for the end of these threads.
    ///
    /// The handler is dropped with the last worker, on that worker's thread or where the pools are
    /// dropped.
    pub fn spawn_handler(
        mut self,
        handler: impl Fn(WorkerThread) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.spawner = Spawner::by(handler);
        self
    }

    /// Sets whether the pools watch their machine, if that is the live one. A thread `cw-follow`
    /// sleeps until the kernel announces that CPUs went offline or came online, or that the
    /// process's cpuset was written. It then calls
    /// [`Machine::refresh`](corewise_topology::Machine::refresh), and notifies the machine's
    /// listeners. [`WorkerPools::shutdown`] ends and joins it. Default: no. The pools follow their
    /// machine all the same if the program changes or refreshes it.
    ///
    /// If the kernel doesn't announce such changes, as in most containers, this is logged once; see
    /// [`Watch`](corewise_topology::Watch). The thread then also checks each second while work
    /// waits for a core.
    pub fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }

    /// Makes the handle. Starts no thread except that of [`PoolsBuilder::follow`]: the first queue
    /// of a set of attributes starts workers. If the system refuses that thread, a warning is
    /// logged.
    pub fn build(mut self) -> WorkerPools {
        let pods = self.machine.pods(self.shard_size);
        let inner = Arc::new_cyclic(|pools: &Weak<Inner>| {
            let follower = self.follow.then(|| follower(&self.machine, pools)).flatten();
            self.time.reminder = follower.as_ref().and_then(Follower::reminder).cloned();
            let time = mem::take(&mut self.time);
            // This runs on the thread that changes the machine.
            let pools = Weak::clone(pools);
            let follow = move |change: &Change| {
                pools.upgrade().into_iter().for_each(|pools| pools.follow(&change.after));
            };
            Inner {
                _following: self.machine.on_change(follow),
                follower,
                pods,
                threads: Threads::new(self.max_threads),
                keeper: self.keeper.take().unwrap_or_else(|| Timekeeper::new(time)),
                groups: Mutex::new(Groups::default()),
                hazards: Arc::default(),
                niceness: spawn::niceness(),
                last_queue: AtomicU64::new(0),
                asked: self,
            }
        });
        WorkerPools { inner }
    }
}

impl fmt::Debug for PoolsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolsBuilder").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// Starts the thread that keeps the machine up to date.
fn follower(machine: &Machine, pools: &Weak<Inner>) -> Option<Follower> {
    if machine.is_synthetic() {
        return None;
    }
    let pools = Weak::clone(pools);
    let repin = move || {
        if let Some(pools) = pools.upgrade() {
            pools.groups().iter().for_each(|group| group.repin());
        }
    };
    let started = Follower::start(machine, repin);
    started
        .inspect_err(|error| {
            tracing::warn!(%error, "the pools cannot watch the machine; they follow CPUs that come \
                                    or go only when Machine::refresh is called");
        })
        .ok()
}

impl WorkerPools {
    /// Pools for a machine, with the defaults.
    pub fn new(machine: &Machine) -> WorkerPools {
        Self::builder(machine).build()
    }

    /// Pools for a machine, to be set up.
    pub fn builder(machine: &Machine) -> PoolsBuilder {
        PoolsBuilder {
            machine: machine.clone(),
            shard_size: DEFAULT_SHARD_SIZE,
            concurrency: None,
            max_workers: DEFAULT_MAX_WORKERS,
            max_threads: DEFAULT_MAX_THREADS,
            idle: Idle::default(),
            idle_timeout: DEFAULT_IDLE_TIMEOUT,
            spawner: Spawner::default(),
            time: Settings::default(),
            keeper: None,
            follow: false,
        }
    }
}
