//! A worker pool: the work of one pod, and the workers that may take it.
//!
//! Read `README.md` beside this file first: it has the states, the steps by name (Push, Check,
//! Publish, Recheck, ...) and the argument why no wake-up is lost. The comments here use those
//! names.
//!
//! Lock order: one pool's lock at a time; nothing is called back while it is held. `Group::follow`
//! takes each pool's under its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::pool::cpu_list::{Conditions, Reading, SearcherBacklog, Word};
use crate::pool::waiters::PoolWaiters;
use corewise_sync::context::Placement;
use corewise_sync::fence::FencePolicy;
use corewise_sync::{CachePadded, Condvar, Mutex, Unparker, spin, thread};
use corewise_topology::{CpuId, CpuSet, current_cpu};
use cpu_list::{CpuList, CpuLists};
use pins::{Pinning, Pins};
use worker::Worker;

use crate::fork::lane::Lanes;
use crate::pool::policy::Counts;
use crate::task::header::Queued;

pub(crate) mod alarm;
pub(crate) mod cpu_list;
pub(crate) mod current_worker;
pub(crate) mod ending;
pub(crate) mod exemption;
mod follow;
pub(crate) mod group;
mod hire;
pub(crate) mod pins;
pub(crate) mod policy;
pub(crate) mod spawn;
mod spawned;
pub(crate) mod steal;
#[cfg(test)]
mod stepped;
#[cfg(test)]
mod stepped_batches;
#[cfg(test)]
mod stepped_dying;
#[cfg(test)]
mod stepped_follow;
mod take;
pub(crate) mod waiters;
pub(crate) mod worker;
pub(crate) mod worker_thread;

pub(crate) use crate::pool::worker::PoolStats;

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
    pub(crate) lists: CpuLists<F>,
    /// A: mirror of `inner` for pushes and for workers that take.
    pub(crate) word: CachePadded<Word>,
    /// What pushes have left to the searcher: on a line that they write while there is one.
    left_to_searcher: CachePadded<SearcherBacklog>,
    /// L: is the lock; guards the idle workers and the counts. Locks of lists are taken under it,
    /// never the other way round.
    pub(crate) inner: CachePadded<Mutex<PoolState>>,
    /// L: waited on with `inner`: once it is closed, told of each worker that leaves.
    left: Condvar,
    /// Where its workers run now. Never locked together with `inner`.
    pins: Pins,
    /// Where items offer their forks.
    pub(crate) lanes: Lanes,
    /// I: how many owners may wait for each other's forks in one chain, and offer one more.
    pub(crate) longest_chain: usize,
    pub(crate) stats: PoolStats,
}

/// What the pool's lock guards.
pub(super) struct PoolState {
    /// Last in, first out: the worker that parked last has the warmest caches.
    idle: Vec<Arc<Worker>>,
    pub(crate) counts: Counts,
    /// When a thread couldn't be made; not tried again for a while.
    refused: Option<Duration>,
    /// Threads that are being made.
    making: usize,
    /// How long a tiny item takes, in nanoseconds, where workers don't hinder each other.
    least: u64,
    /// From how many lists something was taken lately, and how often workers have told of tiny
    /// items since that was counted.
    in_use: (usize, u32),
    closing: bool,
    next_worker: u32,
    /// By number.
    workers: BTreeMap<u32, ending::PoolMember>,
    /// Once it is closed: threads of workers that have left, about to end.
    ending: Vec<thread::JoinHandle<()>>,
    /// Workers that wait for the others to leave.
    joining: usize,
    /// The pod has no CPU that can be used.
    away: bool,
    /// Those who wait for an item of this pool, and could run it.
    pub(crate) wants: PoolWaiters,
    /// The pod has no share of what may run at once: it takes what is for it alone.
    aside: bool,
}

/// What a change of the pool's state calls for, to be carried out after the lock is released.
#[must_use]
pub(super) enum Action {
    None,
    /// Unpark this worker, once it has this CPU alone, if there is one: it is the searcher now.
    Wake(Arc<Worker>, Option<CpuId>),
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
            lists: CpuLists::new(&spec.cpus),
            left_to_searcher: CachePadded::default(),
            word: CachePadded::new(Word::new(Reading::of(&counts, Conditions::default()))),
            inner: CachePadded::new(Mutex::new(PoolState {
                idle: Vec::new(),
                counts,
                refused: None,
                making: 0,
                least: u64::MAX,
                in_use: (0, 0),
                closing: false,
                next_worker: 0,
                workers: BTreeMap::new(),
                ending: Vec::new(),
                joining: 0,
                away: false,
                wants: PoolWaiters::default(),
                aside: false,
            })),
            left: Condvar::new(),
            pins: Pins::new(spec.cpus.clone(), pinning),
            lanes: Lanes::new(),
            longest_chain: policy::longest_chain(spec.max, spec.cpus.len()),
            stats: PoolStats::default(),
            spec,
        }
    }

    /// Whether a CPU is one of its own. Those of a synthetic machine don't exist.
    pub(crate) fn has_cpu(&self, cpu: CpuId) -> bool {
        self.pins.are_real() && self.spec.cpus.contains(cpu)
    }

    /// The token of what runs here.
    pub(crate) fn placement(&self) -> Placement {
        Placement { node: self.spec.node, pod: Some(self.spec.pod) }
    }

    /// The list of what is queued from this CPU, which needn't be one of its own.
    #[inline]
    pub(crate) fn list_of(&self, cpu: CpuId) -> u32 {
        self.lists.of(cpu)
    }

    /// The list of the CPU that the caller is on.
    fn list_here(&self) -> u32 {
        current_cpu().map_or(0, |cpu| self.lists.of(cpu))
    }

    /// Queues an item on this list: Begin, Check, Fill and Publish. Returns the word that Check has
    /// read.
    #[inline(always)]
    fn append(&self, list: u32, queued: Queued) -> Reading {
        self.lists.at(list).append(queued, &self.word)
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
        self.lists.any_waits()
    }

    /// For a worker that found nothing though something waits: an append or a refill is under way.
    /// Waits until that is over or anything is to be had, or for some 50 us: the thread that is at
    /// it may have lost its CPU, and nobody else's items wait for that.
    pub(super) fn outwait_a_while(&self) {
        for tries in 0..spin::TRIES {
            if self.lists.iter().any(CpuList::is_to_be_had)
                || !self.lists.iter().any(CpuList::is_busy)
            {
                return;
            }
            spin::outwait(tries);
        }
    }

    /// Which CPU a worker that is made now gets alone, if that is free: the caller's, where
    /// something waits, or nothing anywhere; else one that something waits for. The caller goes on
    /// there.
    fn cpu_of_a_new_worker(&self) -> Option<CpuId> {
        let here = current_cpu()?;
        let elsewhere =
            self.lists.waiting_near(here).is_some_and(|list| list != self.lists.of(here));
        if elsewhere { self.pins.free(|cpu| self.lists.waits_for(cpu)) } else { Some(here) }
    }

    /// Waits until nobody is about to append, or to refill a ring (a moment ago).
    pub(super) fn outwait(&self) {
        self.lists.iter().for_each(CpuList::outwait);
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
        let waiting = self.lists.iter().map(CpuList::waiting).sum();
        let inner = self.inner.lock();
        let c = &inner.counts;
        (c.total, c.idle, c.blocked, waiting)
    }
}

impl PoolState {
    /// Takes an idle worker off the list, and says which CPU it gets first, if any. It is woken
    /// from `here`, for what waits in one of the lists.
    fn choose<F: FencePolicy>(
        &mut self,
        here: Option<CpuId>,
        lists: &CpuLists<F>,
        pins: &Pins,
    ) -> Option<(Arc<Worker>, Option<CpuId>)> {
        if self.idle.last().is_some_and(|worker| current_worker::is(worker)) {
            // It has gone onto the list just now.
            return self.idle.pop().map(|worker| (worker, None));
        }
        let reason = match here.and_then(|cpu| lists.waiting_near(cpu)) {
            None => WakeReason::Steal,
            Some(list) if here.is_some_and(|cpu| list == lists.of(cpu)) => WakeReason::ThisCpu,
            Some(list) => WakeReason::OtherCpu(list),
        };
        let candidate = |at: usize| {
            let worker = &self.idle[at];
            Candidate::new(worker.is_awake(), worker.own_cpu.get(), here, reason, |cpu| {
                lists.of(cpu)
            })
        };
        let away = |cpu| reason != WakeReason::Steal && self.is_away(cpu);
        let free = || match reason {
            WakeReason::Steal => pins.free(|cpu| here != Some(cpu)),
            _ => pins.free(|cpu| lists.waits_for(cpu)),
        };
        let choice = choose(self.idle.len(), candidate, here, away, free)?;
        Some((self.idle.remove(choice.position), choice.moves_to))
    }

    /// Whether the worker that has a CPU alone sleeps in an item. Not where any roams: others use
    /// these CPUs too, and the scheduler knows better which is free.
    fn is_away(&self, cpu: CpuId) -> bool {
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
        Reading::of(&self.counts(), Conditions { closed, away, aside, refused, wanted })
    }
}

/// What a worker is woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// An item that was queued on the caller's CPU.
    ThisCpu,
    /// An item in this list, that of other CPUs, and nothing on the caller's. It is for the owner
    /// of one of these. (Without that, on 16 simulated CPUs: a storm of two producers makes 0.89
    /// [0.77..1.01], one of four 0.88 [0.84..0.92]; ab2d844.)
    OtherCpu(u32),
    /// Nothing is queued: a fork of the caller, which goes on.
    Steal,
}

/// An idle worker, as its waker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Candidate {
    /// It spins, and takes quickly what comes.
    pub(crate) awake: bool,
    /// It has the CPU alone that the work is for: that of the caller, unless what waits was queued
    /// for another.
    pub(crate) at_home: bool,
    /// It has no CPU alone.
    pub(crate) roams: bool,
    /// It has the caller's CPU alone, which goes on there: the work is for another one.
    pub(crate) in_the_way: bool,
}

impl Candidate {
    /// A worker that has this CPU alone, as a caller on CPU `here` sees it.
    pub(crate) fn new(
        awake: bool,
        own: Option<CpuId>,
        here: Option<CpuId>,
        reason: WakeReason,
        list_of: impl Fn(CpuId) -> u32,
    ) -> Candidate {
        let is_here = own.is_some() && own == here;
        let (at_home, in_the_way) = match reason {
            WakeReason::ThisCpu => (is_here, false),
            WakeReason::OtherCpu(list) => (own.is_some_and(|own| list_of(own) == list), is_here),
            WakeReason::Steal => (false, is_here),
        };
        Candidate { awake, at_home, roams: own.is_none(), in_the_way }
    }
}

/// Which idle worker is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Where it is among the idle ones.
    pub(crate) position: usize,
    /// It gets this CPU alone first.
    pub(crate) moves_to: Option<CpuId>,
}

/// Which of so many idle workers, in the order in which they went idle, is woken from this CPU: one
/// that spins, and so is awake; the one that has the CPU alone that the work is for; or else the
/// one that parked last.
///
/// What was queued for another CPU goes there, although the caller's may be free: who queues for a
/// CPU has a reason, and what is spread over CPUs would pile up on the one from which each wakes
/// the next.
///
/// Where the caller waits for the item, its CPU goes to that worker: to wake another CPU would take
/// longer than most items, and the waiter's again after. Where the caller goes on, they share it
/// for a while, as the scheduler wants. For the same reason the woken worker moves in here where
/// the owner is `away`: it sleeps in an item, and what is queued meanwhile would wait for other
/// CPUs to wake up. One that has another CPU moves only if there is no other.
///
/// One that has the CPU of a caller that goes on is woken for other CPUs only where there is no
/// other, and moves to one of these where that is nobody's: else the caller waits for it, and the
/// other CPU for nothing. So it is for a thief. (On two CPUs, a guest sums a tree of a million
/// nodes in 6.5 ms. With its own CPU's worker as the thief, beside an idle CPU, it took 12.1 ms.)
///
/// On 16 simulated CPUs (ab2d844), four of them burnt: without preference for a worker that spins,
/// the p99 of mix/50 is 0.9 to 7.0 times as long. None burnt: without one for the owner of the CPU,
/// that of mix/50/hint is 6 to 14 times as long, for 4.3 of the CPU time; without the move 1.0 to
/// 6.7 times, for 4.3 of that.
pub(crate) fn choose(
    idle: usize,
    candidate: impl Fn(usize) -> Candidate,
    here: Option<CpuId>,
    away: impl FnOnce(CpuId) -> bool,
    free: impl FnOnce() -> Option<CpuId>,
) -> Option<Choice> {
    let latest = idle.checked_sub(1)?;
    let find = |is: &dyn Fn(Candidate) -> bool| (0..idle).rev().find(|&at| is(candidate(at)));
    let stays = |position| Choice { position, moves_to: None };
    if let Some(awake) = find(&|it| it.awake) {
        return Some(stays(awake));
    }
    let Some(cpu) = here else { return Some(stays(latest)) };
    if let Some(at_home) = find(&|it| it.at_home) {
        return Some(stays(at_home));
    }
    if !away(cpu) {
        let out_of_the_way = find(&|it| !it.in_the_way).map(stays);
        return out_of_the_way.or_else(|| Some(Choice { position: latest, moves_to: free() }));
    }
    let position = find(&|it| it.roams).unwrap_or(latest);
    Some(Choice { position, moves_to: Some(cpu) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROAMS: Candidate =
        Candidate { awake: false, at_home: false, roams: true, in_the_way: false };
    const AT_HOME: Candidate = Candidate { at_home: true, roams: false, ..ROAMS };
    const ELSEWHERE: Candidate = Candidate { roams: false, ..ROAMS };

    const IN_THE_WAY: Candidate = Candidate { in_the_way: true, ..ELSEWHERE };

    fn chosen(idle: &[Candidate], here: Option<u32>, away: bool) -> Option<(usize, Option<u32>)> {
        let here = here.map(CpuId::new);
        let choice = choose(idle.len(), |at| idle[at], here, |_| away, || Some(CpuId::new(7)))?;
        Some((choice.position, choice.moves_to.map(CpuId::number)))
    }

    #[test]
    fn an_awake_worker_is_chosen_before_the_owner_of_this_cpu_and_that_before_the_latest() {
        let awake = Candidate { awake: true, ..ELSEWHERE };
        for away in [false, true] {
            assert_eq!(chosen(&[], Some(0), away), None);
            assert_eq!(chosen(&[awake, AT_HOME, ROAMS], Some(0), away), Some((0, None)));
            assert_eq!(chosen(&[AT_HOME, ELSEWHERE, ROAMS], Some(0), away), Some((0, None)));
            assert_eq!(chosen(&[ELSEWHERE, ROAMS], None, away), Some((1, None)));
        }
        assert_eq!(chosen(&[ROAMS, ELSEWHERE], Some(0), false), Some((1, None)));
    }

    #[test]
    fn a_woken_worker_moves_in_where_the_owner_of_this_cpu_sleeps_in_an_item() {
        assert_eq!(chosen(&[ROAMS, ROAMS, ELSEWHERE], Some(0), true), Some((1, Some(0))));
        assert_eq!(chosen(&[ELSEWHERE], Some(0), true), Some((0, Some(0))), "there is no other");
    }

    #[test]
    fn the_owner_of_the_callers_cpu_gets_what_is_queued_there_and_steals_last() {
        let seen = |own: Option<u32>, reason| {
            let (own, here) = (own.map(CpuId::new), Some(CpuId::new(0)));
            let of = Candidate::new(false, own, here, reason, CpuId::number);
            (of.at_home, of.in_the_way)
        };
        let (home, way, neither) = ((true, false), (false, true), (false, false));
        for (reason, own_here, own_there) in [
            (WakeReason::ThisCpu, home, neither),
            (WakeReason::OtherCpu(1), way, home),
            (WakeReason::OtherCpu(2), way, neither),
            (WakeReason::Steal, way, neither),
        ] {
            let all = [Some(0), Some(1), None].map(|own| seen(own, reason));
            assert_eq!(all, [own_here, own_there, neither], "{reason:?}");
        }
    }

    #[test]
    fn the_owner_of_a_running_callers_cpu_is_woken_last_for_another_cpu_and_moves_there() {
        let chosen = |idle: &[Candidate]| chosen(idle, Some(0), false);
        assert_eq!(chosen(&[AT_HOME, IN_THE_WAY]), Some((0, None)));
        assert_eq!(chosen(&[ELSEWHERE, IN_THE_WAY]), Some((0, None)));
        assert_eq!(chosen(&[IN_THE_WAY]), Some((0, Some(7))));
    }
}
