//! The thread of a worker: how it starts, its loop, and what becomes of its worker where a panic ends it.

use std::io;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use corewise_sync::atomic::Ordering;
use corewise_sync::context::{self, BlockingObserver, ObserverGuard};
use corewise_sync::fence::FencePolicy;
use corewise_sync::sys::Tid;
use corewise_sync::{hint, thread};
use corewise_topology::AffinityScope;

use super::current_worker;
use super::group::{Group, Step};
use super::idler::Idler;
use super::steal::WatchEnd;
use super::worker::Worker;
use crate::error::shielded;
use crate::pool::inherit;

/// Tells the pool when the calling thread, which is this worker's, blocks.
pub(crate) fn observe<F: FencePolicy>(
    worker: &Arc<Worker>,
    group: &Arc<Group<F>>,
) -> ObserverGuard {
    context::observe(Rc::new(Blocks { group: Arc::clone(group), worker: Arc::clone(worker) }))
}

/// The loop of a worker's thread, until it leaves the pool.
fn work<F: FencePolicy>(worker: &Arc<Worker>, group: &Arc<Group<F>>) {
    let mut idler = Idler::new(group.idle);
    // How many instances it had started when it found a ripe fork last, and how often in a row it
    // has not stolen that.
    let (mut ripe, mut vain) = (None, 0);
    loop {
        while group.works(worker) {}
        vain = if ripe.take() == Some(worker.shown.started()) { vain + 1 } else { 0 };
        let pool = &group.pools[worker.pool];
        pool.pins.come_back(&worker.own_cpu);
        let mut watched = group.begin_watch(worker);
        let mut step = idler.rest(worker, group);
        while let Step::Park { surplus } = step {
            if let Some(pool) = watched {
                match group.watches(worker, pool, vain) {
                    WatchEnd::Woken => break,
                    WatchEnd::Ripe => {
                        ripe = Some(worker.shown.started());
                        break;
                    }
                    WatchEnd::Quiet => {
                        watched = pool.lanes.end_watch().then_some(pool);
                        // Short closures may have been left to the watch that ends.
                        if watched.is_none() && pool.has_waiting() && group.rouse(worker) {
                            break;
                        }
                    }
                }
                continue;
            }
            if idler.wait(worker, group, surplus.then_some(group.idle_timeout)) {
                break;
            }
            step = group.idle_timed_out(worker);
        }
        if let Some(pool) = watched {
            pool.lanes.leave_watch();
        }
        if step == Step::Exit {
            pool.lanes.leave();
            return;
        }
    }
}

/// Tells the pool when its worker blocks.
struct Blocks<F: FencePolicy> {
    group: Arc<Group<F>>,
    worker: Arc<Worker>,
}

impl<F: FencePolicy> BlockingObserver for Blocks<F> {
    fn begin(&self) {
        self.group.begin_blocking(&self.worker);
    }

    fn end(&self) {
        self.group.end_blocking(&self.worker);
    }

    fn begin_long(&self) {
        self.group.begin_long(&self.worker);
    }

    fn end_long(&self) {
        self.group.end_long(&self.worker);
    }
}

/// Starts the thread of a worker that the pool has counted, as the pool's searcher.
pub(super) fn start<F: FencePolicy>(
    group: &Arc<Group<F>>,
    worker: Arc<Worker>,
) -> io::Result<Option<thread::JoinHandle<()>>> {
    let (pool, id) = (worker.pool, worker.id);
    worker.searching.store(true, Ordering::Relaxed);
    let (group, its) = (Arc::clone(group), Arc::clone(group));
    // The kernel cuts names at 15 bytes.
    let high = if group.nice < 0 { "H" } else { "" };
    let cpu = group.pools[pool].cpu_of_a_new_worker();
    let name = format!("cw-{}{}:{id}{high}", short(group.scope), group.pools[pool].spec.pod);
    let run = move || {
        worker.tid.store(Tid::current().number(), Ordering::Relaxed);
        its.pools[pool].inner.lock().arrived(id);
        let alive = Alive { worker: &worker, group: &its };
        // Work leaves a saturated pod by being taken over, not by its thread moving, so workers of
        // soft queues are pinned too.
        let _pinned = its.pools[pool].pins.arrive(&worker.own_cpu, cpu);
        set_nice(&its);
        let _placed = its.pools[pool].placement().enter();
        let _observed = observe(&worker, &its);
        let _here = current_worker::enter(&worker, &its);
        work(&worker, &its);
        mem::forget(alive);
    };
    let lost = Arc::clone(&group);
    let lost = move || {
        lost.not_made(pool, id, &io::Error::other("the spawn handler's thread didn't run it"));
    };
    let make = || group.spawner.spawn(name, run, lost);
    current_worker::with_own(&group, |maker| match maker {
        Some(maker) => {
            group.pools[maker.pool].pins.lend(&maker.own_cpu, &group.pools[pool].pins.cpus(), make)
        }
        None => make(),
    })
}

/// Dropped where a panic ends a worker's thread, which is none of its items': forgotten where the
/// worker has left its pool.
pub(super) struct Alive<'a, F: FencePolicy> {
    pub(super) worker: &'a Arc<Worker>,
    pub(super) group: &'a Arc<Group<F>>,
}

impl<F: FencePolicy> Drop for Alive<'_, F> {
    fn drop(&mut self) {
        // In a model the panic is a finding, and the scheduler may be gone.
        if !hint::IN_MODEL {
            shielded("removing a dead worker from its pool", || {
                self.worker.carry.stops();
                self.group.bundle_mine(self.worker);
                // The thread may come to be a worker of other pools.
                self.group.pools[self.worker.pool].lanes.leave();
                self.group.died(self.worker);
            });
        }
    }
}

fn short(scope: AffinityScope) -> &'static str {
    match scope {
        AffinityScope::Cpu => "cpu",
        AffinityScope::Smt => "smt",
        AffinityScope::Cache => "llc",
        AffinityScope::CacheShard => "shard",
        AffinityScope::Numa => "numa",
        AffinityScope::System => "sys",
    }
}

/// Gives the calling worker the niceness of its pools: also where that is the usual one, since it may
/// have been made by a worker of another.
fn set_nice<F: FencePolicy>(group: &Group<F>) {
    let nice = group.thread_nice;
    if let Err(error) = inherit::set_niceness(nice) {
        if !group.nice_refused.swap(true, Ordering::Relaxed) {
            tracing::info!(
                nice,
                %error,
                "the workers of a queue cannot have its niceness, and keep that of the thread that \
                 made them: grant CAP_SYS_NICE or raise RLIMIT_NICE"
            );
        }
    }
}
