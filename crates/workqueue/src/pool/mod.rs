//! A worker pool: the work of one pod, and the workers that may take it.
//!
//! Read `README.md` beside this file first: it has the states, the steps by name (Push, Check,
//! Publish, Recheck, ...) and the argument why no wake-up is lost. The comments here use those
//! names.
//!
//! Lock order: one pool's lock at a time; nothing is called back while it is held. `Group::follow`
//! takes each pool's under its own.

mod ending;
pub(crate) mod excuse;
mod follow;
pub(crate) mod group;
pub(crate) mod here;
mod pick;
pub(crate) mod pins;
pub(crate) mod publication;
#[cfg(all(test, not(loom)))]
mod stepped;
#[cfg(all(test, not(any(loom, shuttle))))]
mod stepped_closing;
#[cfg(all(test, not(any(loom, shuttle))))]
mod stepped_dying;
#[cfg(all(test, not(loom)))]
mod stepped_follow;
pub(crate) mod word;
pub(crate) mod worker;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::context::Placement;
use corewise_sync::fence::FencePolicy;
use corewise_sync::inbox::Inbox;
use corewise_sync::list::List;
use corewise_sync::{CachePadded, Condvar, Mutex, thread};
use corewise_topology::CpuSet;

use crate::claim::Place;
use crate::cpu::current_cpu;
use crate::item::{Queued, Running};
use crate::policy::Counts;
use pins::{Pinning, Pins};
use word::{Reading, Word};
use worker::Worker;

/// Where a pool is, and how big it may get.
#[derive(Debug, Clone)]
pub(crate) struct PoolSpec {
    /// Number of the pod in its scope.
    pub(crate) pod: u32,
    /// The CPUs of the pod that the queue may use, whether or not that is possible now.
    pub(crate) cpus: CpuSet,
    /// The node of the pod, where it lies in one.
    pub(crate) node: Option<u32>,
    /// The most threads.
    pub(crate) max: usize,
    /// The other pools of the group, nearest first.
    pub(crate) near: Vec<usize>,
}

#[cfg(any(test, loom))]
impl PoolSpec {
    /// `pools` pods of `cpus` CPUs each, which make no threads beyond one a CPU: for tests and models
    /// that drive their workers by hand.
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

/// The pool of one pod.
pub(crate) struct Pool<F: FencePolicy> {
    /// I: where it is.
    pub(crate) spec: PoolSpec,
    /// A: what was pushed and not seen under the lock.
    inbox: CachePadded<Inbox<Queued>>,
    /// A: mirror of `inner` for pushes.
    word: CachePadded<Word>,
    /// L: is the lock; guards the list, the idle workers and the counts.
    inner: CachePadded<Mutex<Inner>>,
    /// L: waited on with `inner`: once it is closed, told of each worker that leaves.
    left: Condvar,
    /// Where its workers run now. Never locked together with `inner`.
    pins: Pins,
    /// A: statistics.
    pub(crate) stats: PoolStats,
    fence: PhantomData<F>,
}

/// What happened in a pool so far.
#[derive(Debug, Default)]
pub(crate) struct PoolStats {
    /// A: statistics: items run by this pool's workers.
    pub(crate) ran: AtomicU64,
    /// A: statistics: of those, items taken over from a saturated pod.
    pub(crate) taken_over: AtomicU64,
    /// A: statistics: parked workers woken.
    pub(crate) wakeups: AtomicU64,
    /// A: statistics: items that were found to keep a core from others.
    pub(crate) caught: AtomicU64,
    /// A: statistics: threads made.
    pub(crate) threads_made: AtomicU64,
    /// A: statistics: time on CPUs of workers that have left, in nanoseconds.
    pub(crate) former_cpu_ns: AtomicU64,
}

/// What the pool's lock guards.
pub(super) struct Inner {
    /// Oldest first.
    list: List<Queued>,
    /// Last in, first out: the worker that parked last has the warmest caches.
    idle: Vec<Arc<Worker>>,
    counts: Counts,
    /// When a thread couldn't be made; not tried again for a while.
    refused: Option<Duration>,
    /// Threads that are being made.
    making: usize,
    /// Items taken from the list.
    taken: u64,
    closing: bool,
    next_worker: u32,
    /// By number.
    workers: BTreeMap<u32, ending::Member>,
    /// Once it is closed: threads of workers that have left, about to end.
    ending: Vec<thread::JoinHandle<()>>,
    /// Workers that wait for the others to leave.
    joining: usize,
    /// The pod has no CPU that can be used.
    away: bool,
}

/// What a change of the pool's state calls for, to be carried out after the lock is released.
#[must_use]
pub(super) enum Action {
    None,
    /// Unpark this worker: it is the searcher now.
    Wake(Arc<Worker>),
    /// Make a worker: it is counted already, and is the searcher.
    Make,
    /// The pod can't take its work: look for another pod, and have an eye on it.
    NoRoom,
    /// The pool is closed and has no workers: cancel what is in it.
    Refuse,
}

impl<F: FencePolicy> Pool<F> {
    pub(crate) fn new(spec: PoolSpec, pinning: Pinning) -> Self {
        let base = spec.cpus.len().max(1);
        let counts = Counts { base, max: spec.max.max(base), ..Counts::default() };
        Pool {
            inbox: CachePadded::new(Inbox::new()),
            word: CachePadded::new(Word::new(Reading::of(&counts, false, false, false))),
            inner: CachePadded::new(Mutex::new(Inner {
                list: List::new(),
                idle: Vec::new(),
                counts,
                refused: None,
                making: 0,
                taken: 0,
                closing: false,
                next_worker: 0,
                workers: BTreeMap::new(),
                ending: Vec::new(),
                joining: 0,
                away: false,
            })),
            left: Condvar::new(),
            pins: Pins::new(spec.cpus.clone(), pinning),
            stats: PoolStats::default(),
            spec,
            fence: PhantomData,
        }
    }

    /// Whether a CPU is one of its own. Those of a synthetic machine don't exist.
    pub(crate) fn has_cpu(&self, cpu: u32) -> bool {
        self.pins.are_real() && self.spec.cpus.contains(cpu)
    }

    /// The token of what runs here.
    pub(crate) fn placement(&self) -> Placement {
        Placement { node: self.spec.node, pod: Some(self.spec.pod) }
    }

    /// The stripe of what is queued from this CPU, which needn't be one of its own.
    #[inline]
    pub(crate) fn stripe_of(&self, cpu: u32) -> u32 {
        cpu
    }

    /// The stripe of what the calling thread queues.
    #[inline]
    pub(crate) fn stripe_here(&self) -> u32 {
        current_cpu().map_or(0, |cpu| self.stripe_of(cpu))
    }

    /// What is published (a moment ago).
    pub(crate) fn reading(&self) -> Reading {
        self.word.read()
    }

    /// Where its workers run now: on the pod's usable CPUs or, where it has none, elsewhere.
    pub(crate) fn cpus(&self) -> CpuSet {
        self.pins.cpus()
    }

    /// Whether nothing was pushed since the lock's holder looked last.
    pub(crate) fn inbox_is_empty(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Its workers, in no order.
    pub(crate) fn workers(&self) -> Vec<Arc<Worker>> {
        let inner = self.inner.lock();
        inner.workers.values().map(|member| Arc::clone(&member.worker)).collect()
    }

    /// Threads, idle threads, blocked threads, and items not taken (the list only).
    pub(crate) fn sizes(&self) -> (usize, usize, usize, usize) {
        let inner = self.inner.lock();
        let c = &inner.counts;
        (c.total, c.idle, c.blocked, inner.list.len())
    }
}

impl Inner {
    /// Moves what was pushed to the end of the list.
    fn drain<F: FencePolicy>(&mut self, pool: &Pool<F>) {
        if !pool.inbox.is_empty() {
            self.list.extend(pool.inbox.take().inspect(|item| item.set_place(Place::Listed)));
        }
    }

    /// Takes the oldest item and starts it. Under the lock, as in the kernel: until it has started
    /// an item lies in the list, and afterwards it is neither there nor pending. An item that runs
    /// elsewhere is left to the worker that runs it, a claimed one to its claimant, and the next one
    /// is tried.
    pub(super) fn start_next(&mut self) -> Option<Running> {
        while let Some(queued) = self.list.pop_front() {
            self.taken += 1;
            if let Some(running) = queued.start() {
                return Some(running);
            }
        }
        None
    }

    /// Takes an idle worker off the list: the one that has this CPU alone, where the caller's thread
    /// is, or else the one that parked last. Where the caller waits for the item, its CPU goes to that
    /// worker: to wake another CPU would take longer than most items, and the waiter's again after.
    /// Where the caller goes on, they share it for a while, as the scheduler wants.
    fn choose(&mut self, here: Option<u32>) -> Option<Arc<Worker>> {
        if self.idle.last().is_some_and(|worker| here::is(worker)) {
            // It has gone onto the list just now.
            return self.idle.pop();
        }
        let at_home = |cpu| self.idle.iter().rposition(|worker| worker.own_cpu.is(cpu));
        match here.and_then(at_home) {
            Some(position) => Some(self.idle.remove(position)),
            None => self.idle.pop(),
        }
    }

    /// The counts as the policy should see them.
    fn counts(&self) -> Counts {
        let mut counts = self.counts;
        if self.refused.is_some() {
            counts.max = counts.total;
        }
        counts
    }
}

impl PoolStats {
    pub(crate) fn count(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// The calling thread is this worker's, and ends: its time stays.
    fn worker_leaves(&self, worker: &Worker) {
        // One that is driven by hand has no thread of its own; Miri doesn't know that clock.
        if worker.tid().is_some() && !cfg!(miri) {
            let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let nanoseconds = i128::from(spent.tv_sec) * 1_000_000_000 + i128::from(spent.tv_nsec);
            Self::count(&self.former_cpu_ns, u64::try_from(nanoseconds).unwrap_or(0));
        }
    }
}
