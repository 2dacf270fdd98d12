//! The old design: one pool per last-level cache, and one list under one lock per pool.
//!
//! It is built as well as that design allows, so that the comparison is fair. The lock is the
//! standard library's futex mutex, held for a push or a pop only. A submitter notifies only if a
//! worker is idle, and after it has released the lock. Reused items are counted references, so
//! queueing one allocates nothing, except that the list itself grows once. A closure costs one
//! allocation. Workers are pinned to their cache, one per CPU. If a worker announces that it
//! blocks, another one replaces it. After the block the worker becomes idle if it is one too many.
//!
//! The kernel's was a list under `pool->lock` with the cache as its pod (`WQ_AFFN_CACHE`, the
//! default before 7.1).

use corewise_sync::thread;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use corewise_sync::{Condvar, Mutex, Unparker, per_thread};
use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine, Pods, current_cpu};

use crate::error::BenchError;
use crate::start::pinned;
use crate::workqueue::runtime::{Reuse, Spawn};
use crate::workqueue::tiny::Tiny;

/// A function that is run again and again.
pub type Shared = Arc<dyn Fn() + Send + Sync>;

enum Job {
    Shared(Shared),
    Once(Box<dyn FnOnce() + Send>),
}

/// The pools, and their owner. Dropping it runs the queued items and joins the workers.
pub struct LockedPools(Handle);

/// A handle that queues on the pools. Items queued after their owner's drop never run.
#[derive(Clone)]
pub struct Handle(Arc<All>);

struct All {
    pools: Vec<Arc<Pool>>,
    /// The pool of each CPU, by number; 0 for CPUs in no pool.
    by_cpu: Vec<usize>,
}

struct Pool {
    machine: Machine,
    cpus: CpuSet,
    /// L: is the lock; guards the whole state of the pool.
    state: Mutex<State>,
    /// L: waited on with `state`: there is work, or the end.
    work: Condvar,
    /// L: waited on with `state`: nothing is queued or running.
    drained: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Workers that may run at once.
    base: usize,
    idle: usize,
    /// Workers in a job, including those that block there.
    running: usize,
    blocked: usize,
    closed: bool,
    threads: Vec<thread::JoinHandle<()>>,
}

impl State {
    /// Returns true if one more worker may take a job.
    fn has_room(&self) -> bool {
        self.running - self.blocked < self.base
    }
}

per_thread! {
    /// The pool that this thread works for.
    static MINE: RefCell<Option<Arc<Pool>>> = RefCell::new(None);
}

impl LockedPools {
    /// Creates a pool per last-level cache of the machine, with as many workers as the cache has
    /// online CPUs. Waits until the workers are pinned (on a synthetic machine they aren't).
    ///
    /// # Errors
    /// A worker couldn't be started or pinned.
    pub fn new(machine: &Machine) -> Result<LockedPools, BenchError> {
        let pods = Pods::new(machine.topology(), 1);
        let online = machine.online();
        let caches = pods.scope(AffinityScope::Cache).iter();
        Self::of(machine, caches.map(|pod| pod.cpus.intersection(&online)).collect())
    }

    /// Creates one pool with one worker, on this CPU.
    ///
    /// # Errors
    /// The worker couldn't be started or pinned.
    pub fn on(machine: &Machine, cpu: CpuId) -> Result<LockedPools, BenchError> {
        Self::of(machine, vec![CpuSet::from_iter([cpu])])
    }

    fn of(machine: &Machine, pods: Vec<CpuSet>) -> Result<LockedPools, BenchError> {
        let mut all = All { pools: Vec::new(), by_cpu: Vec::new() };
        for cpus in pods.into_iter().filter(|cpus| !cpus.is_empty()) {
            for cpu in &cpus {
                let cpu = cpu.index();
                all.by_cpu.resize(all.by_cpu.len().max(cpu + 1), 0);
                all.by_cpu[cpu] = all.pools.len();
            }
            all.pools.push(Arc::new(Pool {
                machine: machine.clone(),
                state: Mutex::new(State { base: cpus.len(), ..State::default() }),
                cpus,
                work: Condvar::new(),
                drained: Condvar::new(),
            }));
        }
        if all.pools.is_empty() {
            return Err(BenchError::Nothing { what: "online CPUs" });
        }
        // From here on a drop ends the started workers.
        let pools = LockedPools(Handle(Arc::new(all)));
        for pool in &pools.0.0.pools {
            for _ in &pool.cpus {
                let (theirs, cpus) = (Arc::clone(pool), Some(pool.cpus.clone()));
                let worker = pinned(machine, "before", cpus, move || theirs.work())?;
                pool.state.lock().threads.push(worker);
            }
        }
        Ok(pools)
    }

    /// Returns the handle that queues on them.
    pub fn handle(&self) -> &Handle {
        &self.0
    }
}

impl Handle {
    /// Queues on the pool of the cache of the calling CPU.
    fn push(&self, job: Job) {
        let all = &*self.0;
        let here = current_cpu().and_then(|cpu| all.by_cpu.get(cpu.index()).copied());
        let pool = &all.pools[here.unwrap_or(0)];
        let mut state = pool.state.lock();
        state.queue.push_back(job);
        let wake = state.idle > 0 && state.has_room();
        drop(state);
        if wake {
            pool.work.notify_one();
        }
    }
}

impl Pool {
    /// Runs a worker, which is pinned by now, until the pool is closed and empty.
    fn work(self: Arc<Self>) {
        MINE.with(|mine| *mine.borrow_mut() = Some(Arc::clone(&self)));
        let mut state = self.state.lock();
        loop {
            let job = if state.has_room() { state.queue.pop_front() } else { None };
            if let Some(job) = job {
                state.running += 1;
                drop(state);
                match job {
                    Job::Shared(job) => job(),
                    Job::Once(job) => job(),
                }
                state = self.state.lock();
                state.running -= 1;
                if state.running == 0 && state.queue.is_empty() {
                    self.drained.notify_all();
                }
            } else if state.closed && state.queue.is_empty() {
                // Other workers may wait for room that none needs any more.
                self.work.notify_all();
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state);
                state.idle -= 1;
            }
        }
    }

    /// Replaces this worker, which is about to block, by another one.
    fn block(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.blocked += 1;
        let (wanted, idle) = (!state.queue.is_empty(), state.idle > 0);
        drop(state);
        if idle {
            if wanted {
                self.work.notify_one();
            }
        } else {
            // Nothing waits for the new worker. If the system refuses it, the pool goes on without
            // it.
            let pool = Arc::clone(self);
            let work = move || {
                if pool.machine.pin_current_thread(&pool.cpus).is_ok() {
                    pool.work();
                }
            };
            if let Ok(worker) = thread::Builder::new().name("before".to_owned()).spawn(work) {
                self.state.lock().threads.push(worker);
            }
        }
    }
}

impl Spawn for Handle {
    const HAS_HINT: bool = true;

    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.push(Job::Once(Box::new(closure)));
    }

    fn spawn_blocking<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.spawn(move || {
            let Some(pool) = MINE.with(|mine| mine.borrow().clone()) else { return closure() };
            pool.block();
            closure();
            pool.state.lock().blocked -= 1;
        });
    }

    fn signal(&self, done: Unparker) -> impl Fn() {
        let item: Shared = Arc::new(move || done.unpark());
        move || self.push(Job::Shared(Arc::clone(&item)))
    }

    fn flush(&self) {
        for pool in &self.0.pools {
            let mut state = pool.state.lock();
            while state.running > 0 || !state.queue.is_empty() {
                state = pool.drained.wait(state);
            }
        }
    }
}

impl Reuse for Handle {
    type Item = Shared;

    fn reusable(&self, tiny: Tiny) -> Shared {
        Arc::new(move || tiny.run())
    }

    fn requeue(&self, item: &Shared) -> bool {
        self.push(Job::Shared(Arc::clone(item)));
        true
    }
}

impl Drop for LockedPools {
    fn drop(&mut self) {
        for pool in &self.0.0.pools {
            pool.state.lock().closed = true;
            pool.work.notify_all();
            loop {
                // The lock isn't held: a worker that blocks may start another while it is ending.
                let Some(worker) = pool.state.lock().threads.pop() else { break };
                // A worker's panic was reported when it happened.
                drop(worker.join());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_sync::Completion;

    #[test]
    fn a_worker_that_says_it_blocks_is_replaced() {
        let machine = Machine::synthetic("core:1 pu:1").unwrap();
        let pools = LockedPools::new(&machine).unwrap();
        // Each event waits for the next one: with one worker that would never end.
        let events: Vec<_> = (0..4).map(|_| Arc::new(Completion::new())).collect();
        for pair in events.windows(2) {
            let (mine, next) = (Arc::clone(&pair[0]), Arc::clone(&pair[1]));
            pools.handle().spawn_blocking(move || {
                next.wait();
                mine.complete();
            });
        }
        let last = Arc::clone(&events[3]);
        pools.handle().spawn(move || last.complete());
        pools.handle().flush();
        events[0].wait();
        let state = pools.handle().0.pools[0].state.lock();
        assert_eq!((state.running, state.blocked), (0, 0));
    }
}
