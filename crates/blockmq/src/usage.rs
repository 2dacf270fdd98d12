//! The usage count of a queue: which requests are in it, and the freeze that waits until none is.
//!
//! One count per CPU, and a request leaves where it entered, so that submitters on different CPUs
//! don't share a line and no count is ever negative. Freezing is a fence pair against both sides:
//!
//! ```text
//! enter                   freeze                      exit
//! Peek: depth > 0? park   Freeze: depth += 1          Uncount: count -= 1
//! Count: count += 1
//! EnterFence              FreezeFence                 ExitFence
//! depth > 0?              all counts 0?               depth > 0?
//!   yes: exit, park         no: sleep until told        LeftFence
//!                                                       all counts 0? tell the sleeper
//! ```
//!
//! Without EnterFence and FreezeFence both may read the old value: the freezer sees no request and
//! the request sees no freeze. Without ExitFence the last request leaves without telling the
//! sleeper. Requests come and go all the time and freezes are rare, so the pairs are asymmetric:
//! EnterFence, ExitFence and ParkFence are light ones, FreezeFence and ThawFence heavy ones.
//!
//! The sleeper is told once, by the last of all to leave, and not by the last of each CPU: on its way back to sleep it
//! would take a CPU from those it waits for. Two that leave by different counts may each take the other for the
//! last; LeftFence, a full one on both sides, keeps that from happening, and only those pass it that empty a count
//! of a frozen queue.
//!
//! Peek keeps those who come to a frozen queue from disturbing the freezer, by a count that it sees and by the wake-up
//! that their exit would be. It needs no fence: where it finds the queue open the second look decides, and a thread that is
//! turned away looks once more behind ParkFence in any case.
//!
//! # Room
//!
//! A submitter that waits for nothing would fill the memory: a queue takes so many requests through each CPU, and
//! lets so many wait outside, and then a thread that may block waits for room. (In the kernel it waits for a request,
//! of which there are `nr_requests`, and outside of a frozen queue until that is thawed.) A thread that may not block goes on, and
//! is bounded by what it is called for.
//!
//! ```text
//! wait for room           exit, or let in from outside
//! Full: full = true       Uncount
//! FullFence (heavy)       ExitFence
//! Look: still no room?    enough room again, and full? Clear it, and tell the sleepers
//!   sleep until told
//! ```
//!
//! The fence pair is that of the freeze. Enough room is a little more than for one ([`ROOM_BATCH`]), so that not every
//! request wakes a sleeper. A thread that finds `full` set waits for as much: so sleepers aren't overtaken by one that comes just
//! when a request has ended, and a sleeper has seen the count above the mark by which it will come down.
//!
//! # One for a queue
//!
//! There is one of these in a queue, not in a hardware queue: a request is counted in before it is known to
//! which hardware queue it goes, so that the map of those can be changed while the queue is frozen. The
//! freezer's work is seen by each that enters after the thaw: Thaw is a Release, and the look at the depth an Acquire.

use std::marker::PhantomData;
use std::time::Duration;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, FencePolicy, FullFence};

use crate::depth::{Depth, Lowered};
use crate::wait_queue::WaitQueue;

/// What a [`Usage::unfreeze`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Thawed` obliges the caller to let in those who wait outside"]
pub enum Unfrozen {
    /// The last freeze is gone, and the heavy fence has been issued: let in the waiters outside.
    Thawed,
    /// Somebody else still freezes.
    Nested,
    /// Nobody had frozen; nothing was changed.
    Underflow,
}

/// Those who wait for room through a slot are told when there is room for so many, or for half of all where that is less.
const ROOM_BATCH: u64 = 64;

/// Per-CPU usage counts with a nested freeze, and a bound.
pub struct Usage<F: AsymmetricPolicy = Asymmetric, L: FencePolicy = FullFence> {
    /// A: requests inside, by the CPU slot through which they entered.
    counts: Box<[CachePadded<AtomicU64>]>,
    /// A: how many freezes are in force.
    depth: Depth,
    /// Those who wait until nobody is inside.
    left: WaitQueue,
    /// Requests that get in through each slot before somebody has to wait for room.
    most: u64,
    /// With so many there is enough room for those who wait; below `most`.
    enough: u64,
    /// A: requests that wait outside. Changes are AcqRel, as those of `counts`.
    outside: AtomicU64,
    /// A: somebody waits for room. Relaxed: the fences that are named where it is used order it.
    full: AtomicBool,
    /// Those who wait for room.
    room: WaitQueue,
    fences: PhantomData<(F, L)>,
}

impl<F: AsymmetricPolicy, L: FencePolicy> Usage<F, L> {
    /// Nobody inside; `slots` counts (at least one), and room for `most` (at least one) through each.
    pub fn new(slots: usize, most: u32) -> Self {
        F::prepare();
        let most = u64::from(most.max(1));
        Self {
            counts: (0..slots.max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            depth: Depth::new(),
            left: WaitQueue::new(),
            most,
            enough: most - (most / 2).clamp(1, ROOM_BATCH),
            outside: AtomicU64::new(0),
            full: AtomicBool::new(false),
            room: WaitQueue::new(),
            fences: PhantomData,
        }
    }

    /// Enters through `slot`; false where the queue is frozen: the caller stays outside. Where it waits there it makes
    /// sure, behind ParkFence, that it still is.
    #[must_use = "false means that the caller is not inside"]
    pub fn enter(&self, slot: usize) -> bool {
        if self.is_frozen() {
            return false; // Peek
        }
        self.counts[slot].fetch_add(1, Ordering::AcqRel); // Count
        F::light(); // EnterFence, pairs with FreezeFence
        if self.depth.is_zero() {
            return true;
        }
        self.exit(slot);
        false
    }

    /// Leaves through the slot through which the caller entered.
    pub fn exit(&self, slot: usize) {
        let was = self.counts[slot].fetch_sub(1, Ordering::AcqRel); // Uncount
        debug_assert!(was != 0, "somebody left slot {slot} who had not entered there");
        F::light(); // ExitFence, pairs with FreezeFence and FullFence
        if was == 1 && self.depth.get() != 0 {
            self.tell_if_last();
        }
        if was == self.enough + 1 {
            self.tell_of_room();
        }
    }

    /// The caller has emptied a count of a frozen queue.
    #[cold]
    fn tell_if_last(&self) {
        L::full(); // LeftFence, pairs with itself
        if self.is_empty() {
            self.left.tell();
        }
    }

    /// One more waits outside: the caller has been turned away, and puts it there now.
    pub fn park(&self) {
        self.outside.fetch_add(1, Ordering::AcqRel);
    }

    /// One less waits outside.
    pub fn unpark(&self) {
        let was = self.outside.fetch_sub(1, Ordering::AcqRel);
        F::light(); // ExitFence
        if was <= self.most_outside() {
            self.tell_of_room();
        }
    }

    /// Has those look who wait for room, if there may be any.
    #[inline]
    fn tell_of_room(&self) {
        if self.full.load(Ordering::Relaxed) && self.full.swap(false, Ordering::AcqRel) {
            self.room.tell();
        }
    }

    fn most_outside(&self) -> u64 {
        self.most.saturating_mul(self.counts.len() as u64)
    }

    /// Not more than `bound` are inside through `slot`, and not too many outside.
    fn is_below(&self, slot: usize, bound: u64) -> bool {
        self.counts[slot].load(Ordering::Acquire) <= bound
            && self.outside.load(Ordering::Acquire) < self.most_outside()
    }

    /// Whether one more may come through `slot` without waiting for room.
    #[inline]
    pub fn has_room(&self, slot: usize) -> bool {
        !self.full.load(Ordering::Relaxed) && self.is_below(slot, self.most - 1)
    }

    /// Blocks until there is room for one more through `slot`. No promise: others may be quicker.
    pub fn wait_for_room(&self, slot: usize) {
        self.room.wait(|| {
            let room = self.has_room(slot) || {
                self.full.store(true, Ordering::Relaxed); // Full
                F::heavy(); // FullFence, pairs with ExitFence
                self.is_below(slot, self.enough)
            };
            room.then_some(())
        });
        // A waiter that found it before being told tells the others.
        self.tell_of_room();
    }

    /// Lets nobody in from now on. Doesn't wait.
    pub fn start_freeze(&self) {
        self.depth.raise(); // Freeze
        F::heavy(); // FreezeFence
    }

    /// Blocks until nobody is inside.
    pub fn wait_empty(&self) {
        self.left.wait(|| self.is_empty().then_some(()));
    }

    /// As [`Usage::wait_empty`], for at most `timeout`: true where nobody is inside.
    pub fn wait_empty_timeout(&self, timeout: Duration) -> bool {
        self.left.wait_timeout(timeout, || self.is_empty().then_some(())).is_some()
    }

    /// Undoes one freeze.
    pub fn unfreeze(&self) -> Unfrozen {
        match self.depth.lower() {
            Lowered::Open => {
                F::heavy(); // ThawFence, pairs with the ParkFence of the waiters outside
                Unfrozen::Thawed
            }
            Lowered::Nested => Unfrozen::Nested,
            Lowered::Underflow => Unfrozen::Underflow,
        }
    }

    /// Whether somebody freezes, behind the light fence: for a thread that has just published that it waits
    /// outside (ParkFence).
    pub fn is_frozen_fenced(&self) -> bool {
        F::light();
        self.is_frozen()
    }

    /// Whether somebody freezes, a moment ago.
    pub fn is_frozen(&self) -> bool {
        !self.depth.is_zero()
    }

    /// How many are inside, roughly while they move.
    pub fn inside(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Nobody is inside. Exact only while frozen: no count leaves zero then except for a moment, by
    /// somebody who is turned away. Acquire: what those who left did is visible.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Acquire) == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gate::tests::{Counted, light_fences};

    #[test]
    fn a_frozen_queue_lets_nobody_in_until_the_last_thaw() {
        let usage = Usage::<Asymmetric>::new(2, 8);
        assert!(usage.enter(1));
        usage.start_freeze();
        usage.start_freeze();
        assert!(!usage.enter(0));
        assert!(!usage.wait_empty_timeout(Duration::ZERO), "one is still inside");
        usage.exit(1);
        usage.wait_empty();
        assert_eq!(usage.unfreeze(), Unfrozen::Nested);
        assert!(!usage.enter(0));
        assert_eq!(usage.unfreeze(), Unfrozen::Thawed);
        assert_eq!(usage.unfreeze(), Unfrozen::Underflow);
        assert!(usage.enter(0));
    }

    #[test]
    fn a_request_to_a_frozen_queue_is_never_counted() {
        let usage = Usage::<Counted>::new(1, 8);
        usage.start_freeze();
        assert!(!usage.enter(0));
        assert_eq!(light_fences(), 0, "no count, so no fence behind it");
    }

    #[test]
    fn each_slot_has_its_share_of_the_room_and_a_waiter_waits_for_more_than_one_place() {
        let usage = Arc::new(Usage::<Asymmetric>::new(2, 4));
        for _ in 0..4 {
            assert!(usage.has_room(0) && usage.enter(0));
        }
        assert!(!usage.has_room(0) && usage.has_room(1));
        assert!(usage.enter(0), "who may not wait goes on");
        let waiter = {
            let usage = Arc::clone(&usage);
            std::thread::spawn(move || usage.wait_for_room(0))
        };
        while usage.has_room(1) {
            std::thread::yield_now();
        }
        (0..3).for_each(|_| usage.exit(0));
        waiter.join().unwrap();
        assert!(usage.has_room(0) && usage.has_room(1));
    }

    #[test]
    fn there_is_room_outside_for_as_many_as_inside() {
        let usage = Usage::<Asymmetric>::new(2, 1);
        usage.start_freeze();
        usage.park();
        assert!(usage.has_room(0));
        usage.park();
        assert!(!usage.has_room(0));
        usage.unpark();
        usage.wait_for_room(0);
    }

    #[test]
    fn a_freezer_is_woken_by_the_last_one_to_leave() {
        let usage = Arc::new(Usage::<Asymmetric>::new(1, 8));
        assert!(usage.enter(0));
        let freezer = {
            let usage = Arc::clone(&usage);
            std::thread::spawn(move || {
                usage.start_freeze();
                usage.wait_empty();
            })
        };
        while !usage.is_frozen() {
            std::thread::yield_now();
        }
        usage.exit(0);
        freezer.join().unwrap();
    }
}
