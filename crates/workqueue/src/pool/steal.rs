//! Thieves: idle workers, and owners that wait for a stolen fork.
//!
//! `../fork/README.md` has the protocol (Watch, Steal, Leapfrog) and the policy.

use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::context::BlockingObserver;
use corewise_sync::fence::FencePolicy;
use corewise_sync::{hint, time};

use super::group::Group;
use super::policy::Counts;
use super::worker::Worker;
use super::{Pool, current_worker};
use crate::fork;
use crate::fork::lane::{Lane, StealTarget};
use crate::fork::record::{Fork, Stolen};
use crate::fork::ring::OldestFork;
use crate::task::header::Job;
use crate::task::running::Publication;
use crate::task::running::{self, ForksTo, Running};
use crate::task::ticket::Ticket;

/// Time that a fork lies in its ring before a thief takes it: about the cost of a theft for both
/// sides. The owner of a smaller fork calls it sooner itself.
const RIPE: Duration = Duration::from_micros(if hint::IN_MODEL { 0 } else { 4 });
/// Number of lanes with forks that a thief compares at once.
const COMPARED: usize = 16;
/// First sleep of a watcher between two looks. The other constant is the longest.
const NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_micros(400);
/// Number of times that a nap doubles, after thefts in vain: it takes some 13 ms then.
const MOST_VAIN: u32 = 8;
/// Number of looks in a row without a fork after which the watch ends.
const EMPTY_LOOKS: u32 = if hint::IN_MODEL { 1 } else { 4 };

/// The end of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchEnd {
    /// The worker was woken: it is off the idle list.
    Woken,
    /// The watcher has found a fork that is ripe, and is off the idle list.
    Ripe,
    /// The watch is over, since no item forks any more.
    Quiet,
}

/// The oldest forks of some lanes, at one moment.
struct Forks<'a> {
    seen: [Option<(&'a Lane, StealTarget)>; COMPARED],
}

impl<'a> Forks<'a> {
    fn of<F: FencePolicy>(
        pools: impl Iterator<Item = &'a Pool<F>>,
        look: fn(&Lane) -> Option<StealTarget>,
    ) -> Forks<'a> {
        let mut all = pools.flat_map(|pool| pool.lanes.seen(look));
        Forks { seen: std::array::from_fn(|_| all.next()) }
    }

    fn is_empty(&self) -> bool {
        self.seen[0].is_none()
    }

    /// Returns those that are still the oldest of their lanes.
    fn ripe(&self) -> impl Iterator<Item = (&'a Lane, StealTarget)> + '_ {
        let same = |(lane, target): &(&'a Lane, StealTarget)| lane.steal_target() == Some(*target);
        self.seen.iter().flatten().copied().filter(same)
    }
}

/// Waits for about as long as a fork takes to become ripe, or until `ends`.
fn ripen(ends: impl Fn() -> bool) {
    let began = time::now();
    while !ends() && time::now().duration_since(began) < RIPE {
        for _ in 0..16 {
            hint::spin_loop();
        }
    }
}

impl<F: FencePolicy> Group<F> {
    /// Returns the pools that a thief of this one searches: its own, and the saturated ones whose
    /// work may leave them, nearest first.
    fn victims(&self, index: usize) -> impl Iterator<Item = &Pool<F>> {
        let others = if self.soft { &self.pools[index].spec.near[..] } else { &[] };
        let others = others.iter().map(|other| &self.pools[*other]);
        let others = others.filter(|other| other.lanes.any() && other.reading().saturated());
        std::iter::once(&self.pools[index]).chain(others)
    }

    /// Calls a stolen fork, if a worker, which found no item, finds one that is ripe.
    #[cold]
    pub(super) fn steals(self: &Arc<Self>, me: &Worker) -> bool {
        if !self.victims(me.pool).any(|pool| pool.lanes.any()) {
            // No item has ever forked here.
            return false;
        }
        let pool = &self.pools[me.pool];
        let mut forks = Forks::of(self.victims(me.pool), Lane::fork);
        if forks.is_empty() {
            // These are read later: their owners write these lines all the time.
            if !self.victims(me.pool).any(|pool| pool.lanes.in_use()) {
                return false;
            }
            ripen(|| pool.lists.any_has_next());
            forks = Forks::of(self.victims(me.pool), Lane::steal_target);
        }
        let Some(own) = pool.lanes.own(fork::floor) else { return false };
        ripen(|| pool.lists.any_has_next());
        if pool.lists.any_has_next() {
            return false;
        }
        let stolen = forks.ripe().any(|(victim, target)| match target {
            StealTarget::Fork(oldest) => {
                let stolen = steal(victim, oldest, own, |_| true);
                if let Some((fork, ticket)) = stolen {
                    self.has_stolen(me);
                    call(&me.shown, own, victim, fork, ticket);
                    return true;
                }
                false
            }
            StealTarget::Spawned(seen) => {
                let stolen = self.steals_spawned(victim, seen, own);
                if stolen {
                    self.has_stolen(me);
                }
                stolen
            }
        });
        if stolen {
            self.runs_spawned(me);
        }
        stolen
    }

    /// Begins Watch, by a worker that goes idle. Returns the pool whose lanes it inspects from now
    /// on, now and then: its own, or else one that has no idle worker for that.
    pub(super) fn begin_watch(&self, me: &Worker) -> Option<&Pool<F>> {
        self.victims(me.pool).find(|pool| pool.lanes.begin_watch())
    }

    /// Inspects the lanes now and then, as the idle worker that has begun the watch. `vain`: number
    /// of times in a row that it has found a ripe fork, and could not steal it.
    pub(super) fn watches(
        self: &Arc<Self>,
        me: &Arc<Worker>,
        watched: &Pool<F>,
        vain: u32,
    ) -> WatchEnd {
        let mut nap = NAP * (1 << vain.min(MOST_VAIN));
        let (longest, mut empty) = (LONGEST_NAP.max(nap), 0);
        let forks = || Forks::of(std::iter::once(watched), Lane::steal_target);
        let mut before = forks();
        loop {
            if me.park(Some(nap)) {
                return WatchEnd::Woken;
            }
            // While there is a watcher, short closures wake no worker.
            let wanted = before.ripe().next().is_some() || watched.has_waiting();
            if wanted && self.rouse(me) {
                return WatchEnd::Ripe;
            }
            before = forks();
            empty = if before.is_empty() { empty + 1 } else { 0 };
            if empty == EMPTY_LOOKS {
                return WatchEnd::Quiet;
            }
            nap = (nap * 2).min(longest);
        }
    }

    /// Carries out Rouse: an idle worker leaves the idle list by itself, if a core is free. Returns
    /// true also if another thread has taken it off; then its token comes.
    pub(super) fn rouse(self: &Arc<Self>, me: &Arc<Worker>) -> bool {
        let action = {
            let mut inner = self.pools[me.pool].inner.lock();
            match inner.idle.iter().position(|worker| Arc::ptr_eq(worker, me)) {
                Some(_) if !self.pools[me.pool].has_core_for_thief(&inner.counts) => return false,
                Some(position) => {
                    inner.idle.remove(position);
                    inner.counts.idle -= 1;
                }
                None => {
                    drop(inner);
                    me.park(None);
                    return true;
                }
            }
            self.settle(me.pool, &mut inner, false)
        };
        self.perform(me.pool, action);
        true
    }

    /// Handles the first fork that an owner has pushed to its ring. If no worker watches, and a
    /// core is free here or in another pod, it wakes a worker.
    #[inline]
    pub(crate) fn has_forked(self: &Arc<Self>, index: usize) {
        let pool = &self.pools[index];
        if pool.lanes.calls::<F>() {
            let reading = pool.reading();
            if reading.wake() {
                self.push_slow(index);
            } else if reading.saturated() {
                self.overflow_if_any(index);
            }
        }
    }

    /// Returns true if a moment ago there were unwatched forks, here or in a saturated pod, and a
    /// core for a thief.
    pub(super) fn needs_thief(&self, index: usize, counts: &Counts) -> bool {
        self.pools[index].has_core_for_thief(counts)
            && self.victims(index).any(|pool| pool.lanes.need_thief())
    }
}

/// Reports to the pool when a guest's thread blocks, or computes for long.
pub(crate) struct GuestBlocks<F: FencePolicy> {
    group: Arc<Group<F>>,
    pool: usize,
    /// Depth of the regions that its thread is in. The outermost one counts.
    regions: Cell<u32>,
}

impl<F: FencePolicy> GuestBlocks<F> {
    pub(crate) fn new(group: Arc<Group<F>>, pool: usize) -> GuestBlocks<F> {
        GuestBlocks { group, pool, regions: Cell::new(0) }
    }
}

impl<F: FencePolicy> BlockingObserver for GuestBlocks<F> {
    fn begin(&self) {
        let outer = self.regions.replace(self.regions.get() + 1);
        if outer == 0 {
            self.group.pools[self.pool].lanes.guest_sleeps();
            // A thief may use its CPU.
            self.group.push_slow(self.pool);
        }
    }

    fn end(&self) {
        let outer = self.regions.get() - 1;
        self.regions.set(outer);
        if outer == 0 {
            self.group.pools[self.pool].lanes.guest_wakes();
        }
    }
}

impl<F: FencePolicy> Pool<F> {
    /// Returns true if a core is free for a thief, beside workers and guests.
    fn has_core_for_thief(&self, counts: &Counts) -> bool {
        counts.active() + self.lanes.guests() < counts.base
    }
}

/// Steals a fork for the caller, whose lane is `own`, with a ticket to run it.
fn steal(
    victim: &Lane,
    oldest: OldestFork,
    own: &Lane,
    agrees: impl FnOnce(&Fork) -> bool,
) -> Option<(NonNull<Fork>, Ticket)> {
    let mut ticket = None;
    let fork = victim.ring.steal(oldest, |fork| {
        // SAFETY: the owner waits for the ring's lock before it may let go of the fork.
        let fork = unsafe { fork.as_ref() };
        ticket = if agrees(fork) { fork.ticket().share() } else { None };
        if ticket.is_some() {
            fork.is_stolen_by(own);
        }
        ticket.is_some()
    });
    fork.zip(ticket)
}

/// Carries out Leapfrog: the caller waits for a fork that the owner of the lane `thief` has stolen.
/// It steals one that the thief has made since, and calls it. Returns false if there is none that
/// is ripe.
pub(crate) fn leapfrog(own: &Lane, thief: &Lane, awaited: &Fork) -> bool {
    let Some(oldest) = thief.ring.oldest() else { return false };
    ripen(|| awaited.is_settled());
    if awaited.is_settled() {
        return true;
    }
    // The check comes when the fork is the caller's: the thief has pushed that fork before it
    // settles the awaited one, and so as a part of that.
    let descends = |_: &Fork| !awaited.is_settled();
    let Some((fork, ticket)) = steal(thief, oldest, own, descends) else { return false };
    current_worker::with_shown(|shown| {
        call(shown, own, thief, fork, ticket);
        running::show_again(shown);
    });
    true
}

/// Runs a stolen fork as an item of its queue, for the owner of the lane `own`.
fn call(shown: &Publication, own: &Lane, victim: &Lane, fork: NonNull<Fork>, ticket: Ticket) {
    // SAFETY: the caller has stolen it, and it isn't settled.
    let (stolen, site, queue, chain) = unsafe {
        let Fork { site, queue, chain, .. } = *fork.as_ref();
        (Stolen::new(fork, victim), site, queue, chain)
    };
    let mut running = Running::new(stolen.item(), Job { ticket: ticket.into(), site });
    // The lane is the one that the fork's owner knows, and has only parts of this fork.
    running.forks.set(ForksTo { queue, lane: ptr::from_ref(own).cast() });
    fork::in_chain(chain + 1, || running.run(shown, None));
}
