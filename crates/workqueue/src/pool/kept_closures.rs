//! Closures that a worker's items spawn without a join. They stay with the worker while no other
//! has a core for them, and go to the list of the pool in bundles.
//!
//! `../fork/README.md` has the protocol (Keep, Bundle, Steal).

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::fence::FencePolicy;
use corewise_sync::{hint, time};

use super::Pool;
use super::group::Group;
use super::worker::Worker;
use crate::fork;
use crate::fork::lane::Lane;
use crate::fork::spawn_ring::{Block, Closure, OldestSpawned};
use crate::pool::policy;
use crate::task::running::Running;

/// Shortest closure that is worth a wake-up, which costs its caller about as much.
const COARSE: Duration = Duration::from_micros(if hint::IN_MODEL { 0 } else { 5 });
/// Number of closures after which a worker reads the clock, which costs as much as a short closure.
/// It reads the clock again after four times as many, or after each if they aren't short.
const LOOK: u32 = if hint::IN_MODEL { 1 } else { 4 };

impl<F: FencePolicy> Pool<F> {
    /// Returns true if a moment ago an item waited, or a worker kept a closure.
    pub(crate) fn has_more(&self) -> bool {
        self.has_waiting() || self.lanes.iter().any(|lane| lane.spawned.len() > 0)
    }
}

impl<F: FencePolicy> Group<F> {
    /// Returns true if a closure that a running item spawns may stay with its worker. It is short,
    /// or the worker finds out whether it is, and no idle worker has a core for it.
    #[inline]
    pub(crate) fn may_keep(&self, index: usize, lane: &Lane) -> bool {
        let pool = &self.pools[index];
        let reading = pool.reading();
        let coarse = pool.lanes.is_coarse() && (reading.wake() || !lane.probes());
        !(coarse || reading.closed() || reading.wanted() || self.others_have_room(index))
    }

    /// Carries out Keep: the calling worker's item has spawned a closure, and the worker keeps it.
    #[inline]
    pub(crate) fn keep(self: &Arc<Self>, index: usize, lane: &Lane, closure: Closure) {
        match lane.spawned.append(closure) {
            Ok(false) => {}
            Ok(true) => self.has_spawned(index),
            Err(closure) => {
                self.bundle(index, lane);
                lane.overflows();
                if lane.spawned.append(closure).is_ok() {
                    self.has_spawned(index);
                }
            }
        }
    }

    /// Bundles the kept closures, since the calling worker's item is about to queue one: the kept
    /// ones go first, and later ones go behind it.
    #[inline]
    pub(crate) fn overtakes_none(self: &Arc<Self>, index: usize, lane: &Lane) {
        if lane.spawned.len() > 0 {
            self.bundle(index, lane);
        }
        lane.overflows();
    }

    /// Wakes a worker, if need be, for a closure in a ring that was empty.
    #[inline]
    fn has_spawned(self: &Arc<Self>, index: usize) {
        let pool = &self.pools[index];
        if pool.lanes.calls::<F>() && pool.reading().wake() {
            self.push_slow(index);
        } else if pool.reading().saturated() {
            self.keeper.ask();
        }
    }

    /// Carries out Bundle: the closures that the calling worker keeps go to the list of its pool.
    #[inline(never)]
    pub(super) fn bundle(self: &Arc<Self>, index: usize, lane: &Lane) {
        let pool = &self.pools[index];
        let block = pool.lanes.take_spawned(lane, Location::caller());
        let reading = pool.append(pool.list_here(), block);
        if !(reading.wake() && pool.lanes.leaves_to_watcher()) {
            self.has_pushed(index, reading);
        }
    }

    /// Bundles the closures that the calling worker keeps, since it is about to sleep, or to
    /// compute for long.
    pub(super) fn bundle_mine(self: &Arc<Self>, me: &Worker) {
        if let Some(lane) = self.pools[me.pool].lanes.mine() {
            if lane.spawned.len() > 0 {
                self.bundle(me.pool, lane);
            }
        }
    }

    /// Runs the closures that the item of `me` has left to its worker, and those that these spawn,
    /// for a turn.
    #[inline(never)]
    pub(super) fn runs_spawned(self: &Arc<Self>, me: &Worker) {
        let pool = &self.pools[me.pool];
        let Some(lane) = pool.lanes.mine() else { return };
        // The closures that are there now are run; those that they spawn are younger than the list.
        let mut due = lane.spawned.len();
        if due == 0 {
            // This is the case after most items that fork: the clock isn't read.
            lane.takes_overflow();
            return;
        }
        let first = if pool.lanes.is_coarse() { 1 } else { LOOK };
        let (began, mut ran, mut looks, mut over) = (time::now(), 0, first, false);
        loop {
            let left = lane.spawned.len();
            let overflowed = lane.takes_overflow();
            if left == 0 {
                return;
            }
            let reading = pool.reading();
            let others = left > 1 && reading.wake() && !pool.lanes.leaves_to_watcher();
            if due == 0 {
                over |= pool.has_waiting();
                due = left;
            }
            let gives = over || others || reading.crowded() || me.has_item_exemptions();
            if overflowed || gives {
                return self.bundle(me.pool, lane);
            }
            due -= 1;
            // A thief may have been there.
            let Some(closure) = lane.spawned.take() else { return };
            closure.run(&me.shown, &me.carry);
            me.ran.count(1, 0);
            ran += 1;
            if ran == looks {
                let took = time::now().duration_since(began);
                let coarse = took / ran >= COARSE;
                pool.lanes.set_coarse(coarse);
                looks = if coarse { ran + 1 } else { ran * 4 };
                over = policy::turn_is_over(u64::from(ran), took);
            }
        }
    }

    /// Opens a block that `me` has taken, in the place of a run: `me` keeps its closures.
    #[inline(never)]
    pub(super) fn opens(self: &Arc<Self>, me: &Worker, block: &Running, taken_over: bool) {
        // SAFETY: its table is that of a block, and it is used up here.
        let block = unsafe { Block::from_item(block.pointer()) };
        if taken_over {
            block.iter().for_each(Closure::overflowed);
        }
        let lanes = &self.pools[me.pool].lanes;
        match lanes.own(fork::floor) {
            Some(lane) => {
                lanes.recycle(lane, lane.spawned.put(block));
                self.has_spawned(me.pool);
                self.runs_spawned(me);
            }
            None => block.for_each(|closure| closure.run(&me.shown, &me.carry)),
        }
    }

    /// Steals closures from the ring of another worker, for `me`, whose lane is `own`.
    pub(super) fn steals_spawned(&self, victim: &Lane, seen: OldestSpawned, own: &Lane) -> bool {
        let stolen = victim.spawned.steal(seen, |closure| {
            let kept = own.spawned.append(closure);
            debug_assert!(kept.is_ok(), "the ring of an idle worker is empty");
        });
        stolen > 0
    }
}
