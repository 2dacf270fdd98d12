//! The thread of a worker: its start, its loop, and what becomes of its worker if a panic ends it.
//!
//! Between "found nothing" and its sleep a worker may look out for work first. Best it does so as
//! the pool's searcher (Search in `README.md`), so that what is queued is taken from where it was
//! pushed. Else it does so on the idle list, like a parked worker. The waker leaves the token of
//! its parker, and makes a system call only if it sleeps; that is no part of the pool's protocol.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem};

use corewise_sync::atomic::Ordering;
use corewise_sync::context::{self, BlockingObserver, ObserverGuard};
use corewise_sync::fence::FencePolicy;
use corewise_sync::sys::Tid;
use corewise_sync::{hint, thread, time};
use corewise_topology::{AffinityScope, current_cpu};

use crate::error::shielded;
use crate::pool::group::{Group, Step};
use crate::pool::policy::Idle;
use crate::pool::policy::{self, Habit, IdleEnd, Shares, is_quick, made_way_well};
use crate::pool::steal::WatchEnd;
use crate::pool::worker::Worker;
use crate::pool::{current_worker, spawn};

/// Tells the pool when the calling thread, which is this worker's, blocks.
pub(crate) fn observe<F: FencePolicy>(
    worker: &Arc<Worker>,
    group: &Arc<Group<F>>,
) -> ObserverGuard {
    context::observe(Rc::new(BlockObserver {
        group: Arc::clone(group),
        worker: Arc::clone(worker),
    }))
}

/// Runs the loop of a worker's thread, until it leaves the pool.
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
struct BlockObserver<F: FencePolicy> {
    group: Arc<Group<F>>,
    worker: Arc<Worker>,
}

impl<F: FencePolicy> BlockingObserver for BlockObserver<F> {
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
        let alive = DeathGuard { worker: &worker, group: &its };
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

/// A guard that is dropped if a panic ends a worker's thread, which is none of its items'. It is
/// forgotten if the worker has left its pool.
pub(super) struct DeathGuard<'a, F: FencePolicy> {
    pub(super) worker: &'a Arc<Worker>,
    pub(super) group: &'a Arc<Group<F>>,
}

impl<F: FencePolicy> Drop for DeathGuard<'_, F> {
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

/// Gives the calling worker the niceness of its pools: even if that is the usual one, since it may
/// have been made by a worker of another.
fn set_nice<F: FencePolicy>(group: &Group<F>) {
    let nice = group.thread_nice;
    if let Err(error) = spawn::set_niceness(nice) {
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

/// Number of looks at the token before the first yield: some us, in which most of the work comes
/// that comes to a spinning worker.
const FIRST_LOOKS: u32 = 32;
/// Number of looks between two yields: some 8 us, which another thread that wants the CPU waits at
/// most.
const LOOKS: u32 = 256;
/// Longest yield that counts as alone. A yield that took longer has let another thread run: the CPU
/// isn't free, and a worker that spun on would delay that thread.
const ALONE: Duration = Duration::from_micros(6);
/// Number of runs that a search has found of which one is timed: a clock costs as much as a small
/// item.
const SAMPLE: u32 = 16;

/// The way in which a worker idles, and what it has learnt.
pub(super) struct Idler {
    idle: Idle,
    habit: Habit,
    shares: Shares,
    /// Time between a yield and the next work, if it made way.
    made_way: Option<Duration>,
    /// Time when it was given work last, if that is known.
    since: Option<Instant>,
    /// Its last run was short, of which that is known.
    quick: bool,
    /// Time since which it has searched in vain.
    searched: Option<Instant>,
    /// Number of times that it has found something while it searched.
    found: u32,
    /// True if no other thread wanted its CPU when it yielded last.
    alone: bool,
    /// The longest that others kept it from its CPU lately.
    late: Duration,
    /// Items that it had run when it ran out of work last.
    ran: u64,
    /// Time when it was given work last.
    began: Instant,
    /// Since when it roams, if it does.
    roams: Option<Instant>,
}

impl Idler {
    pub(super) fn new(idle: Idle) -> Idler {
        // In a model there is no time to spin for.
        let idle = if hint::IN_MODEL || cfg!(miri) { Idle::Sleep } else { idle };
        Idler {
            idle,
            habit: Habit::NEW,
            shares: Shares::NEW,
            made_way: None,
            since: None,
            quick: false,
            searched: None,
            found: 0,
            alone: true,
            late: Duration::ZERO,
            ran: 0,
            began: time::now(),
            roams: None,
        }
    }

    /// Handles a worker that has found nothing: searches for a while if that pays and nobody else
    /// does, and goes idle.
    pub(super) fn rest<F: FencePolicy>(
        &mut self,
        worker: &Arc<Worker>,
        group: &Arc<Group<F>>,
    ) -> Step {
        let now = time::now();
        self.may_settle(worker, group, now);
        let step = self.search(worker, group, now);
        group.was_late(worker, mem::take(&mut self.late));
        step
    }

    /// Carries out Settle if the worker roams and that is worth it, or if it has roamed for long
    /// enough.
    fn may_settle<F: FencePolicy>(&mut self, worker: &Worker, group: &Group<F>, now: Instant) {
        let items = worker.ran.items();
        let took = now.duration_since(mem::replace(&mut self.began, now));
        let streamed = policy::is_stream(items - mem::replace(&mut self.ran, items), took);
        if !worker.own_cpu.roams() {
            self.roams = None;
        }
        let roamed = self.roams.map_or(Duration::ZERO, |since| now.duration_since(since));
        if group.may_settle(worker, streamed, roamed) || self.roams.is_none() {
            self.roams = worker.own_cpu.roams().then_some(now);
        }
    }

    fn search<F: FencePolicy>(
        &mut self,
        worker: &Arc<Worker>,
        group: &Arc<Group<F>>,
        began: Instant,
    ) -> Step {
        let budget = self.habit.budget(self.idle);
        if budget.is_zero() {
            return group.go_idle(worker);
        }
        self.ran_until(began);
        if self.quick && group.begin_search(worker) {
            let pool = &group.pools[worker.pool];
            // Items that another has reserved are seldom left.
            let calls = || pool.has_waiting() || group.calls_searcher(worker.pool);
            if self.spin(began, budget, || pool.lists.any_has_next(), calls) {
                self.habit.learn(IdleEnd::Spun);
                self.found = self.found.wrapping_add(1);
                self.since = (self.found % SAMPLE == 0).then(time::now);
                return Step::Again;
            }
            self.searched = Some(began);
        }
        group.go_idle(worker)
    }

    /// Waits until the worker is woken; returns false if a surplus worker's time ran out first.
    pub(super) fn wait<F: FencePolicy>(
        &mut self,
        worker: &Worker,
        group: &Group<F>,
        limit: Option<Duration>,
    ) -> bool {
        let woken = self.waits(worker, limit);
        group.was_late(worker, mem::take(&mut self.late));
        woken
    }

    /// Parks; whether it was woken.
    fn parks(&mut self, worker: &Worker, limit: Option<Duration>) -> bool {
        let woken = worker.park(limit);
        if woken {
            self.late = worker.woken_for();
            self.began = time::now();
        }
        woken
    }

    fn waits(&mut self, worker: &Worker, limit: Option<Duration>) -> bool {
        if self.idle == Idle::Sleep {
            return self.parks(worker, limit);
        }
        let (searched, began) = match self.searched.take() {
            Some(began) => (true, began),
            None => (false, time::now()),
        };
        let budget = self.habit.budget(self.idle);
        let spins = !budget.is_zero();
        self.ran_until(began);
        let makes_way = !spins && self.idle == Idle::Hybrid && self.shares.pays();
        if makes_way {
            thread::yield_now();
            if worker.try_park() {
                let now = time::now();
                self.made_way = Some(now.duration_since(began));
                self.since = Some(now);
                return true;
            }
            self.shares.learn(false);
        }
        if spins && !searched {
            worker.spins(self.quick);
            let found = self.spin(began, budget, || worker.try_park(), || false);
            worker.spins(false);
            if found {
                self.habit.learn(IdleEnd::Spun);
                self.since = Some(time::now());
                return true;
            }
        }
        let woken = self.parks(worker, limit);
        let ended = time::now();
        let from_here = current_cpu().is_some_and(|cpu| worker.was_woken_from(cpu));
        let for_so_long = ended.duration_since(began);
        self.habit.learn(IdleEnd::Slept { for_so_long, spun: spins, from_here });
        self.shares.slept(for_so_long, from_here);
        self.since = Some(ended);
        woken
    }
}

impl Idler {
    /// Learns from the end of what it was given. Making way for the thread that shares the CPU was
    /// well if that brought much work, or brought it soon.
    fn ran_until(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        let run = now.duration_since(since);
        self.quick = is_quick(run);
        if let Some(waited) = self.made_way.take() {
            self.shares.learn(made_way_well(waited, run));
        }
    }

    /// Looks out until there is `work`, or until the time is over, and returns whether there was
    /// any. Gives up if others want the CPU and bring no work: it would only keep them from it, or
    /// be kept from it while work waits. `calls` is asked more seldom.
    fn spin(
        &mut self,
        began: Instant,
        budget: Duration,
        work: impl Fn() -> bool,
        calls: impl Fn() -> bool,
    ) -> bool {
        let (mut looks, mut last) = (FIRST_LOOKS, began);
        loop {
            for _ in 0..if self.alone { looks } else { 1 } {
                if work() {
                    return true;
                }
                hint::spin_loop();
            }
            let looked = time::now();
            if looked.duration_since(began) >= budget {
                return false;
            }
            thread::yield_now();
            let now = time::now();
            self.alone = now.duration_since(looked) <= ALONE;
            self.late = self.late.max(now.duration_since(last));
            last = now;
            if work() || calls() {
                return true;
            }
            if !self.alone {
                return false;
            }
            looks = LOOKS;
        }
    }
}
