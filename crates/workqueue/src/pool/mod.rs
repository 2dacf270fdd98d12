//! A worker pool: the work of one pod, and the workers that may take it.
//!
//! Read `README.md` beside this file first: it has the states, the steps by name (Push, Check,
//! Publish, Recheck, ...) and the argument why no wake-up is lost. The comments here use those
//! names.
//!
//! Lock order: one pool's lock at a time; nothing is called back while it is held. `Group::follow`
//! takes each pool's under its own.

pub(crate) mod alarm;
mod choice;
pub(crate) mod current_worker;
pub(crate) mod ending;
pub(crate) mod excuse;
mod follow;
pub(crate) mod group;
pub(crate) mod idle;
mod idler;
pub(crate) mod inherit;
mod pick;
pub(crate) mod pins;
pub(crate) mod policy;
mod regions;
pub(crate) mod report;
pub(crate) mod service_thread;
pub(crate) mod spawn;
mod stats;
#[cfg(test)]
mod stepped;
#[cfg(test)]
mod stepped_closing;
#[cfg(test)]
mod stepped_dying;
#[cfg(test)]
mod stepped_follow;
mod stripe;
pub(crate) mod thread_limit;
pub(crate) mod wants;
pub(crate) mod word;
pub(crate) mod worker;
pub(crate) mod worker_thread;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::context::Placement;
use corewise_sync::fence::FencePolicy;
use corewise_sync::sys::current_cpu;
use corewise_sync::{CachePadded, Condvar, Mutex, Unparker, thread};
use corewise_topology::CpuSet;

use crate::pool::policy::Counts;
use crate::task::running::Running;
use choice::Candidate;
use pins::{Pinning, Pins};
pub(crate) use stats::PoolStats;
use stripe::Stripes;
use wants::Wants;
use word::{Left, Reading, Rest, Word};
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

/// The pool of one pod.
pub(crate) struct Pool<F: FencePolicy> {
    /// I: where it is.
    pub(crate) spec: PoolSpec,
    /// What was pushed and not taken.
    pub(crate) stripes: Stripes<F>,
    /// A: mirror of `inner` for pushes and for workers that take.
    word: CachePadded<Word>,
    /// What pushes have left to the searcher: on a line that they write while there is one.
    left_to_searcher: CachePadded<Left>,
    /// L: is the lock; guards the idle workers and the counts. Locks of stripes are taken under it,
    /// never the other way round.
    pub(crate) inner: CachePadded<Mutex<Inner>>,
    /// L: waited on with `inner`: once it is closed, told of each worker that leaves.
    left: Condvar,
    /// Where its workers run now. Never locked together with `inner`.
    pins: Pins,
    pub(crate) stats: PoolStats,
}

/// What the pool's lock guards.
pub(super) struct Inner {
    /// Last in, first out: the worker that parked last has the warmest caches.
    idle: Vec<Arc<Worker>>,
    counts: Counts,
    /// How long blocking regions have been lately.
    regions: regions::Regions,
    /// When a thread couldn't be made; not tried again for a while.
    refused: Option<Duration>,
    /// Threads that are being made.
    making: usize,
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
    /// Those who wait for an item of this pool, and could run it.
    pub(crate) wants: Wants,
    /// The pod has no share of what may run at once: it takes what is for it alone.
    aside: bool,
}

/// What a change of the pool's state calls for, to be carried out after the lock is released.
#[must_use]
pub(super) enum Action {
    None,
    /// Unpark this worker, once it has this CPU alone, if there is one: it is the searcher now.
    Wake(Arc<Worker>, Option<u32>),
    /// Make a worker: it is counted already, and is the searcher.
    Make,
    /// The pod can't take its work: look for another pod, and have an eye on it.
    NoRoom,
    /// The pool is closed and has no workers: cancel what is in it.
    Refuse,
    /// No room, and no worker can come: wake one who waits for an item, to run that.
    Call(Unparker),
}

impl<F: FencePolicy> Pool<F> {
    pub(crate) fn new(spec: PoolSpec, pinning: Pinning) -> Self {
        let base = spec.cpus.len().max(1);
        let counts = Counts { base, max: spec.max.max(base), ..Counts::default() };
        Pool {
            stripes: Stripes::new(&spec.cpus),
            left_to_searcher: CachePadded::default(),
            word: CachePadded::new(Word::new(Reading::of(&counts, Rest::default()))),
            inner: CachePadded::new(Mutex::new(Inner {
                idle: Vec::new(),
                counts,
                regions: regions::Regions::NEW,
                refused: None,
                making: 0,
                closing: false,
                next_worker: 0,
                workers: BTreeMap::new(),
                ending: Vec::new(),
                joining: 0,
                away: false,
                wants: Wants::default(),
                aside: false,
            })),
            left: Condvar::new(),
            pins: Pins::new(spec.cpus.clone(), pinning),
            stats: PoolStats::default(),
            spec,
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
        self.stripes.of(cpu)
    }

    /// The stripe of the CPU that `me` is on.
    #[inline]
    fn home_of(&self, me: &Worker) -> usize {
        let stripes = self.stripes.len();
        if stripes == 1 {
            return 0;
        }
        current_cpu().map_or(me.id as usize % stripes, |cpu| self.stripes.of(cpu) as usize)
    }

    /// Takes and starts an item of the stripe of the CPU that `me` is on, whose lines are here; in turn
    /// with those of stripes that were left alone, so that none starves.
    #[inline(always)]
    fn start_at_home(&self, me: &Worker) -> Option<Running> {
        let home = self.home_of(me);
        if me.looks_around()
            && let Some(running) = self.start_by_turns(me, home)
        {
            return Some(running);
        }
        self.stripes.start_at(home)
    }

    /// Takes and starts an item of another stripe, if it is the turn of that: nobody had taken anything from
    /// it since the last look at it.
    #[cold]
    fn start_by_turns(&self, me: &Worker, home: usize) -> Option<Running> {
        let stripes = self.stripes.len();
        if !me.turn_is_over() {
            let Some(turn) = me.turn() else {
                me.looks_later();
                return None;
            };
            let running = self.stripes.start_at(turn);
            if running.is_none() {
                me.gives_turn(None);
            }
            return running;
        }
        me.gives_turn(None);
        let look = me.begins_turn();
        if stripes == 1 {
            return None;
        }
        // Each other one twice in a row: to remember, and to compare.
        let other = (home + 1 + (look / 2) as usize % (stripes - 1)) % stripes;
        let taken = self.stripes.iter().nth(other)?.taken();
        let running = (me.saw(taken) == taken && look % 2 == 1)
            .then(|| self.stripes.start_at(other))
            .flatten();
        if running.is_some() {
            me.gives_turn(Some(other));
        }
        running
    }

    /// Takes and starts an item of any stripe; of any other, where there was none at home.
    #[cold]
    fn start_anywhere(&self, me: &Worker, home_too: bool) -> Option<Running> {
        let stripes = self.stripes.len();
        if stripes > 1 && self.stripes.any_may_wait() && me.makes_way() {
            // Who queues here may wait for this CPU, and what is queued elsewhere is for the workers there:
            // each CPU for itself nobody waits for another one's lines.
            me.carry.stops();
            thread::yield_now();
            let running = self.stripes.start_at(self.home_of(me));
            me.made_way(running.is_some());
            if running.is_some() {
                return running;
            }
        }
        me.has_looked();
        let (home, real) = (self.home_of(me), self.pins.are_real());
        let after = usize::from(!home_too);
        let mut gathered = None;
        let running = self.stripes.start_next(home + after, stripes - after, |at| {
            if at != home && real && me.lets_gather() {
                gathered = Some(at);
            }
        });
        if let Some(at) = gathered {
            me.has_gathered(self.stripes.may_wait_at(at));
        }
        running
    }

    /// What is published (a moment ago).
    #[inline]
    pub(crate) fn reading(&self) -> Reading {
        self.word.read()
    }

    /// Where its workers run now: on the pod's usable CPUs or, where it has none, elsewhere.
    pub(crate) fn cpus(&self) -> CpuSet {
        self.pins.cpus()
    }

    /// Whether anything waits to be taken (a moment ago).
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.stripes.any_waits()
    }

    /// Its workers, in no order.
    pub(crate) fn workers(&self) -> Vec<Arc<Worker>> {
        let inner = self.inner.lock();
        inner.workers.values().map(|member| Arc::clone(&member.worker)).collect()
    }

    /// How many of its workers may hold a core at once.
    pub(crate) fn concurrency(&self) -> usize {
        self.inner.lock().counts.base
    }

    /// Threads, idle threads, blocked threads, and items not taken.
    pub(crate) fn sizes(&self) -> (usize, usize, usize, usize) {
        let waiting = self.stripes.iter().map(|stripe| stripe.lock().len()).sum();
        let inner = self.inner.lock();
        let c = &inner.counts;
        (c.total, c.idle, c.blocked, waiting)
    }
}

impl Inner {
    /// Takes an idle worker off the list, and says which CPU it gets first, if any. It is woken from
    /// `here`, for what waits in one of the stripes.
    fn choose<F: FencePolicy>(
        &mut self,
        here: Option<u32>,
        stripes: &Stripes<F>,
    ) -> Option<(Arc<Worker>, Option<u32>)> {
        if self.idle.last().is_some_and(|worker| current_worker::is(worker)) {
            // It has gone onto the list just now.
            return self.idle.pop().map(|worker| (worker, None));
        }
        // What was queued for another CPU is for who has that one, unless something waits here too.
        let there = here.and_then(|cpu| {
            let stripe = stripes.waiting_near(cpu)?;
            (stripe != stripes.of(cpu)).then_some(stripe)
        });
        let candidate = |at: usize| {
            let worker = &self.idle[at];
            let own = worker.own_cpu.get();
            let at_home = own.is_some_and(|own| match there {
                Some(stripe) => stripes.of(own) == stripe,
                None => here == Some(own),
            });
            Candidate { awake: worker.is_awake(), at_home, roams: own.is_none() }
        };
        let choice = choice::choose(self.idle.len(), candidate, here, |cpu| self.is_away(cpu))?;
        Some((self.idle.remove(choice.position), choice.moves_to))
    }

    /// Whether the worker that has a CPU alone sleeps in an item. Not where any roams: others use these CPUs too, and the
    /// scheduler knows better which is free.
    fn is_away(&self, cpu: u32) -> bool {
        let counts = &self.counts;
        let workers = || self.workers.values().map(|member| &member.worker);
        counts.blocked + counts.intensive > 0
            && workers().any(|worker| worker.own_cpu.is(cpu) && worker.is_asleep())
            && !workers().any(|worker| worker.own_cpu.roams())
    }

    /// The counts as the policy should see them.
    fn counts(&self) -> Counts {
        let mut counts = self.counts;
        if self.refused.is_some() {
            counts.max = counts.total;
        }
        counts
    }

    /// What is to be published.
    fn reading(&self) -> Reading {
        let (closed, away, aside) = (self.closing, self.away, self.aside);
        let (refused, wanted) = (self.refused.is_some(), !self.wants.is_empty());
        Reading::of(&self.counts(), Rest { closed, away, aside, refused, wanted })
    }
}
