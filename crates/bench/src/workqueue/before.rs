//! The old design: per last-level cache one pool, and per pool one list under one lock.
//!
//! It is built as well as that design allows, so that it is a fair opponent: the lock is the
//! standard library's futex mutex, held for a push or a pop only; a submitter notifies only where a
//! worker is idle, and after it has let go of the lock; items are counted references, so queueing
//! one allocates nothing (but the list's own growth, once); workers are pinned to their cache, one
//! per CPU.
//!
//! The kernel's was a list under `pool->lock` with the cache as its pod (`WQ_AFFN_CACHE`, the
//! default before 7.1).

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;

use corewise_sync::{Completion, Condvar, Mutex, Unparker};
use corewise_topology::{AffinityScope, Machine, Pods, current_cpu};

use crate::error::BenchError;
use crate::workqueue::kernel_test::Queue;

/// Something to run, again and again.
pub type Job = Arc<dyn Fn() + Send + Sync>;

/// The pools. Dropping them runs what is queued and joins the workers.
pub struct LockedPools {
    pools: Vec<Arc<Pool>>,
    /// The pool of each CPU, by number; 0 for CPUs in no pool.
    by_cpu: Vec<usize>,
    workers: Vec<thread::JoinHandle<()>>,
}

struct Pool {
    /// L: is the lock; guards everything about the pool.
    state: Mutex<State>,
    /// L: waited on with `state`: there is work, or the end.
    work: Condvar,
    /// L: waited on with `state`: nothing is queued or running.
    drained: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: usize,
    running: usize,
    closed: bool,
}

impl LockedPools {
    /// One pool per last-level cache of the machine, with as many workers as the cache has online
    /// CPUs. Waits until the workers are pinned (on a synthetic machine they aren't).
    ///
    /// # Errors
    /// A worker couldn't be started or pinned.
    pub fn new(machine: &Machine) -> Result<LockedPools, BenchError> {
        let pods = Pods::new(machine.topology(), 1);
        let online = machine.online();
        let mut all = LockedPools { pools: Vec::new(), by_cpu: Vec::new(), workers: Vec::new() };
        for pod in pods.scope(AffinityScope::Cache) {
            let cpus = pod.cpus.intersection(&online);
            if cpus.is_empty() {
                continue;
            }
            let pool = Arc::new(Pool {
                state: Mutex::new(State::default()),
                work: Condvar::new(),
                drained: Condvar::new(),
            });
            for cpu in &pod.cpus {
                let cpu = cpu as usize;
                if all.by_cpu.len() <= cpu {
                    all.by_cpu.resize(cpu + 1, 0);
                }
                all.by_cpu[cpu] = all.pools.len();
            }
            all.pools.push(Arc::clone(&pool));
            for _ in &cpus {
                all.start_worker(machine, &pool, &cpus)?;
            }
        }
        if all.pools.is_empty() {
            return Err(BenchError::Nothing { what: "online CPUs" });
        }
        Ok(all)
    }

    /// Starts a worker. An error drops `self`, which ends those started before.
    fn start_worker(
        &mut self,
        machine: &Machine,
        pool: &Arc<Pool>,
        cpus: &corewise_topology::CpuSet,
    ) -> Result<(), BenchError> {
        let (machine, pool, cpus) = (machine.clone(), Arc::clone(pool), cpus.clone());
        let pinned = Arc::new((Mutex::new(Ok(())), Completion::new()));
        let told = Arc::clone(&pinned);
        let builder = thread::Builder::new().name("before".to_owned());
        let worker = builder.spawn(move || {
            let result = machine.pin_current_thread(&cpus).map(drop);
            let is_pinned = result.is_ok();
            *told.0.lock() = result;
            told.1.complete();
            if is_pinned {
                pool.run();
            }
        });
        self.workers.push(worker.map_err(BenchError::Thread)?);
        pinned.1.wait();
        let result = std::mem::replace(&mut *pinned.0.lock(), Ok(()));
        Ok(result?)
    }

    /// Queues a job on the pool of the cache of the CPU that this is called on.
    pub fn queue_job(&self, job: &Job) {
        let here = current_cpu().and_then(|cpu| self.by_cpu.get(cpu as usize).copied());
        let pool = &self.pools[here.unwrap_or(0)];
        let mut state = pool.state.lock();
        state.queue.push_back(Arc::clone(job));
        let wake = state.idle > 0;
        drop(state);
        if wake {
            pool.work.notify_one();
        }
    }
}

impl Pool {
    /// A worker's loop: runs until the pool is closed and empty.
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.running += 1;
                drop(state);
                job();
                drop(job);
                state = self.state.lock();
                state.running -= 1;
                if state.running == 0 && state.queue.is_empty() {
                    self.drained.notify_all();
                }
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state);
                state.idle -= 1;
            }
        }
    }
}

impl Queue for LockedPools {
    type Item = Job;

    fn item(&self, done: Unparker) -> Job {
        Arc::new(move || done.unpark())
    }

    fn queue(&self, item: &Job) {
        self.queue_job(item);
    }

    fn flush(&self) {
        for pool in &self.pools {
            let mut state = pool.state.lock();
            while state.running > 0 || !state.queue.is_empty() {
                state = pool.drained.wait(state);
            }
        }
    }
}

impl Drop for LockedPools {
    fn drop(&mut self) {
        for pool in &self.pools {
            pool.state.lock().closed = true;
            pool.work.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker that panicked has no more to say here.
            drop(worker.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_job_runs_once_per_queueing_and_flush_waits_for_all() {
        let machine = Machine::synthetic("l3:2 core:2 pu:1").unwrap();
        let pools = LockedPools::new(&machine).unwrap();
        assert_eq!((pools.pools.len(), pools.workers.len()), (2, 4));
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        let job: Job = Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..1_000).for_each(|_| pools.queue_job(&job)));
            }
        });
        pools.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 3_000);
        pools.queue_job(&job);
        drop(pools);
        assert_eq!(ran.load(Ordering::Relaxed), 3_001, "a drop runs what is queued");
    }
}
