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
mod kept_closures;
pub(crate) mod pins;
pub(crate) mod policy;
pub(crate) mod spawn;
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

/// The place of a pool, and its maximum size.
#[derive(Debug, Clone)]
pub(crate) struct PoolSpec {
    /// Number of the pod in its scope.
    pub(crate) pod: u32,
    /// The CPUs of the pod that the queue may use, whether or not that is possible now.
    pub(crate) cpus: CpuSet,
    /// The node of the pod, if it lies in one.
    pub(crate) node: Option<u32>,
    /// Maximum of threads.
    pub(crate) max: usize,
    /// The other pools of the group, nearest first.
    pub(crate) near: Vec<usize>,
}

/// The pool of one pod.
pub(crate) struct Pool<F: FencePolicy> {
    /// I: the place of the pool.
    pub(crate) spec: PoolSpec,
    /// The items that were pushed and not taken.
    pub(crate) lists: CpuLists<F>,
    /// A: mirror of `inner` for pushes and for workers that take.
    pub(crate) word: CachePadded<Word>,
    /// The pushes that were left to the searcher: on a line that they write while there is one.
    left_to_searcher: CachePadded<SearcherBacklog>,
    /// L: is the lock; guards the idle workers and the counts. Locks of lists are taken under it,
    /// never the other way round.
    pub(crate) inner: CachePadded<Mutex<PoolState>>,
    /// L: waited on with `inner`: notified of each worker that leaves a closed pool.
    left: Condvar,
    /// The CPUs on which its workers run now. Never locked together with `inner`.
    pins: Pins,
    /// The lanes in which items offer their forks.
    pub(crate) lanes: Lanes,
    /// I: number of owners that may wait for each other's forks in one chain, and offer one more.
    pub(crate) longest_chain: usize,
    pub(crate) stats: PoolStats,
}

/// The data that the pool's lock guards.
pub(super) struct PoolState {
    /// Last in, first out: the worker that parked last has the warmest caches.
    idle: Vec<Arc<Worker>>,
    pub(crate) counts: Counts,
    /// Time when a thread couldn't be made; not tried again for a while.
    refused: Option<Duration>,
    /// Threads that are being made.
    making: usize,
    /// Time that a tiny item takes, in nanoseconds, if workers don't hinder each other.
    least: u64,
    /// Number of lists from which something was taken lately, and number of times that workers have
    /// told of tiny items since that was counted.
    in_use: (usize, u32),
    closing: bool,
    next_worker: u32,
    /// The workers, by number.
    workers: BTreeMap<u32, ending::PoolMember>,
    /// Threads of workers that have left a closed pool, about to end.
    ending: Vec<thread::JoinHandle<()>>,
    /// Workers that wait for the others to leave.
    joining: usize,
    /// True if the pod has no usable CPU.
    away: bool,
    /// The threads that wait for an item of this pool, and could run it.
    pub(crate) wants: PoolWaiters,
    /// True if the pod has no share of the CPU quota: it takes only work that is for it alone.
    aside: bool,
}

/// A consequence of a change of the pool's state, to be carried out after the lock is released.
#[must_use]
pub(super) enum Action {
    None,
    /// Unpark this worker, once it has this CPU alone, if there is one: it is the searcher now.
    Wake(Arc<Worker>, Option<CpuId>),
    /// Make a worker, which is counted already, and is the searcher.
    Make,
    /// The pod can't take its work: look for another pod, and watch this one.
    NoRoom,
    /// The pool is closed and has no workers: cancel its items.
    Refuse,
    /// Wake a waiter to run its awaited item: there is no room, and no worker can come.
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

    /// Returns true if a CPU is one of its own. Those of a synthetic machine don't exist.
    pub(crate) fn has_cpu(&self, cpu: CpuId) -> bool {
        self.pins.are_real() && self.spec.cpus.contains(cpu)
    }

    /// Returns the placement token for items that run here.
    pub(crate) fn placement(&self) -> Placement {
        Placement { node: self.spec.node, pod: Some(self.spec.pod) }
    }

    /// Returns the list of what is queued from this CPU, which needn't be one of its own.
    #[inline]
    pub(crate) fn list_of(&self, cpu: CpuId) -> u32 {
        self.lists.of(cpu)
    }

    /// Returns the list of the CPU that the caller is on.
    fn list_here(&self) -> u32 {
        current_cpu().map_or(0, |cpu| self.lists.of(cpu))
    }

    /// Queues an item on this list: Begin, Check, Fill and Publish. Returns the word that Check has
    /// read.
    #[inline(always)]
    fn append(&self, list: u32, queued: Queued) -> Reading {
        self.lists.at(list).append(queued, &self.word)
    }

    /// Returns the word of a moment ago.
    #[inline]
    pub(crate) fn reading(&self) -> Reading {
        self.word.read()
    }

    /// Returns where its workers run now: on the pod's usable CPUs or, if it has none, elsewhere.
    pub(crate) fn cpus(&self) -> CpuSet {
        self.pins.cpus()
    }

    /// Returns true if anything waits to be taken (a moment ago).
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.lists.any_waits()
    }

    /// Waits for an append or a refill that is under way, for a worker that found nothing although
    /// an item waits. Returns once that is over, once any item can be taken, or after some 50 us.
    /// The appending thread may have lost its CPU, and no other items should wait for it.
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

    /// Returns the CPU that a worker made now gets for itself, if that is free. It is the caller's,
    /// if an item waits there, or none anywhere; else one for which an item waits. The caller
    /// continues on its own.
    fn cpu_of_a_new_worker(&self) -> Option<CpuId> {
        let here = current_cpu()?;
        let elsewhere =
            self.lists.waiting_near(here).is_some_and(|list| list != self.lists.of(here));
        if elsewhere { self.pins.free(|cpu| self.lists.waits_for(cpu)) } else { Some(here) }
    }

    /// Waits until a moment without a thread that appends, or refills a ring.
    pub(super) fn outwait(&self) {
        self.lists.iter().for_each(CpuList::outwait);
    }

    /// Returns its workers, in no order.
    pub(crate) fn workers(&self) -> Vec<Arc<Worker>> {
        let inner = self.inner.lock();
        inner.workers.values().map(|member| Arc::clone(&member.worker)).collect()
    }

    /// Returns how many of its workers may hold a core at once.
    pub(crate) fn concurrency(&self) -> usize {
        self.inner.lock().counts.base
    }

    /// Returns the numbers of threads, idle threads, blocked threads, and items not taken.
    pub(crate) fn sizes(&self) -> (usize, usize, usize, usize) {
        let waiting = self.lists.iter().map(CpuList::waiting).sum();
        let inner = self.inner.lock();
        let c = &inner.counts;
        (c.total, c.idle, c.blocked, waiting)
    }
}

impl PoolState {
    /// Takes an idle worker off the list, and returns the CPU that it gets first, if any. It is
    /// woken from `here`, for an item in one of the lists.
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

    /// Returns true if the worker that has a CPU for itself sleeps in an item. Returns false if any
    /// worker roams: others use these CPUs too, and the scheduler knows better which is free.
    fn is_away(&self, cpu: CpuId) -> bool {
        let counts = &self.counts;
        let workers = || self.workers.values().map(|member| &member.worker);
        counts.blocked + counts.intensive > 0
            && workers().any(|worker| worker.own_cpu.is(cpu) && worker.is_asleep())
            && !workers().any(|worker| worker.own_cpu.roams())
    }

    /// Returns the counts for the policy.
    fn counts(&self) -> Counts {
        let mut counts = self.counts;
        if self.refused.is_some() {
            counts.max = counts.total;
        }
        counts
    }

    /// Returns the reading to publish.
    fn reading(&self) -> Reading {
        let (closed, away, aside) = (self.closing, self.away, self.aside);
        let (refused, wanted) = (self.refused.is_some(), !self.wants.is_empty());
        Reading::of(&self.counts(), Conditions { closed, away, aside, refused, wanted })
    }
}

/// The reason to wake a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WakeReason {
    /// An item that was queued on the caller's CPU.
    ThisCpu,
    /// An item in this list, that of other CPUs, and nothing on the caller's. It is for the owner
    /// of one of these.
    OtherCpu(u32),
    /// A fork of the caller, which continues. Nothing is queued.
    Steal,
}

/// An idle worker, as its waker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Candidate {
    /// True if it spins, and takes a coming item quickly.
    pub(crate) awake: bool,
    /// True if it owns the CPU that the work is for: that of the caller, unless the waiting item
    /// was queued for another.
    pub(crate) at_home: bool,
    /// True if it has no CPU for itself.
    pub(crate) roams: bool,
    /// True if its own CPU is the caller's, which continues there: the work is for another one.
    pub(crate) in_the_way: bool,
}

impl Candidate {
    /// Creates a worker that has this CPU for itself, as a caller on CPU `here` sees it.
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

/// The idle worker that is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Its position among the idle ones.
    pub(crate) position: usize,
    /// The CPU that it gets for itself first.
    pub(crate) moves_to: Option<CpuId>,
}

/// Chooses the idle worker to wake from this CPU, of this many in the order in which they went
/// idle. It prefers one that spins, and so is awake, then the owner of the CPU that the work is
/// for. Otherwise it takes the one that parked last.
///
/// Work that was queued for another CPU goes there, although the caller's may be free. The queuer
/// has a reason for its choice. Spread work would otherwise pile up on the CPU from which each
/// worker wakes the next.
///
/// If the caller waits for the item, its CPU goes to that worker: waking another CPU, and later the
/// waiter's again, would take longer than most items. If the caller continues, they share the CPU
/// for a while, as the scheduler wants. For the same reason the woken worker moves in here if the
/// owner is `away`. The owner sleeps in an item, and items that are queued meanwhile would wait for
/// other CPUs to wake up. A worker that has another CPU moves only if there is no other.
///
/// If the caller continues, the worker of its CPU is woken for other CPUs only if there is no other
/// worker. It moves to one of these if that has no owner. Else the caller would wait for it, and
/// the other CPU for nothing. The same holds for a thief.
///
/// Each of these preferences shortens the tail latency of mixed work several times.
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
