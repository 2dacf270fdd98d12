//! The usage count of a queue: the requests in it, and the freeze that waits until none is.
//!
//! There is one count per CPU, and a request leaves where it entered. So submitters on different
//! CPUs don't share a line, and no count is ever negative. Freezing is a fence pair against both
//! sides:
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
//! the request sees no freeze. Without ExitFence the last request leaves without waking the
//! sleeper. Requests come and go all the time and freezes are rare, so the pairs are asymmetric:
//! EnterFence, ExitFence and ParkFence are light ones, FreezeFence and ThawFence heavy ones.
//!
//! The sleeper is woken once, by the last of all to leave, and not by the last of each CPU. On its
//! way back to sleep it would take a CPU from the threads it waits for. Two that leave by different
//! counts may each take the other for the last. LeftFence, a full one on both sides, keeps that
//! from happening. Only threads that empty a count of a frozen queue pass it.
//!
//! Peek keeps requests that come to a frozen queue from disturbing the freezer, by a count that it
//! sees and by the wake-up of their exit. It needs no fence. If it finds the queue open, the second
//! look decides; a thread that is turned away looks once more after ParkFence in any case.
//!
//! # Room
//!
//! A submitter that waits for nothing would fill the memory. So a queue takes a bounded number of
//! requests through each CPU, and lets as many wait outside; then a thread that may block waits for
//! room. (In the kernel it waits for a request, of which there are `nr_requests`, and outside of a
//! frozen queue until that is thawed.) A thread that may not block continues; the work that it is
//! called for bounds it.
//!
//! ```text
//! wait for room           exit, or let in from outside
//! Full: full = true       Uncount
//! FullFence (heavy)       ExitFence
//! Look: still no room?    enough room again, and full? Clear it, and tell the sleepers
//!   sleep until told
//! ```
//!
//! The fence pair is that of the freeze. Enough room is a little more than for one
//! ([`ROOM_BATCH`]), so that not every request wakes a sleeper. A thread that finds `full` set
//! waits for as much. So no thread that comes just when a request has ended overtakes the sleepers,
//! and a sleeper has seen the count above the mark by which it will come down.
//!
//! # Ages
//!
//! Each count is three numbers in one word, one for each *generation*. A request is counted in the
//! generation that is current when it enters, and remembers which. An observer that asks for the
//! age of the oldest request ends the current generation once a second, and begins one that has no
//! request left. A request of a generation that has ended is at least as old as that end. If each
//! other generation still has a request, the current one lasts on: the oldest request is in one of
//! those, and its age is known all the same.
//!
//! So a request pays for its age with one load of a word that changes once a second, beside the
//! depth that it reads anyway. Its read-modify-writes stay the same. Such a load may be late: then
//! the request counts for the generation that ended while it entered, before which its submission
//! had begun.
//!
//! A number has 21 bits. More requests in a second through one CPU come only from threads that may
//! not wait for room. Then the numbers of that count are wrong until these requests have left;
//! their sum is right. Whether it is 0 is exact.
//!
//! # One for a queue
//!
//! A queue has one of these, not each hardware queue. A request is counted in before its hardware
//! queue is known, so that the map of those can be changed while the queue is frozen. A request
//! that enters after the thaw sees the freezer's work: Thaw is a Release, and the look at the depth
//! an Acquire.

use std::marker::PhantomData;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering, aside};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, FencePolicy, FullFence};
use corewise_sync::time::Stamp;
use corewise_sync::{CachePadded, Mutex};

use crate::admission::gate::{Depth, WaitQueue};

/// Amount of room at which the waiters for room of a slot wake, or half of all if that is less.
const ROOM_BATCH: u64 = 64;

/// The requests that entered in one period. A request is counted out in its own generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    const COUNT: u32 = 3;
    /// Number of bits of its number in a count.
    const BITS: u32 = 21;
    const MOST: u64 = (1 << Self::BITS) - 1;
    /// The shortest time that a generation lasts.
    const PERIOD: Duration = Duration::from_secs(1);

    /// Returns all generations.
    fn all() -> impl Iterator<Item = Generation> {
        (0..Self::COUNT).map(Generation)
    }

    /// Returns the count of one request of it.
    #[inline]
    fn one(self) -> u64 {
        1 << (Self::BITS * self.0)
    }

    /// Returns the number of its requests in a count.
    fn of(self, count: u64) -> u64 {
        count >> (Self::BITS * self.0) & Self::MOST
    }

    /// Returns the number of requests in a count.
    #[inline]
    fn sum(count: u64) -> u64 {
        (count & Self::MOST)
            + (count >> Self::BITS & Self::MOST)
            + (count >> (2 * Self::BITS) & Self::MOST)
    }
}

/// The times at which each generation ended, and the current one began.
#[derive(Debug, Default)]
struct Ages {
    ended: [Stamp; Generation::COUNT as usize],
    began: Stamp,
}

/// Per-CPU usage counts with a nested freeze, and a bound.
pub struct Usage<F: AsymmetricPolicy = Asymmetric, L: FencePolicy = FullFence> {
    /// A: requests inside, by the CPU slot through which they entered; each a number for each
    /// [`Generation`].
    counts: Box<[CachePadded<AtomicU64>]>,
    /// A: number of freezes in force.
    depth: Depth,
    /// A: the current generation. Relaxed: a request that takes the one before is counted there.
    generation: aside::AtomicU32,
    /// L: is the lock, which only queries for ages take; guards the times at which generations
    /// began and ended.
    ages: Mutex<Ages>,
    /// Threads that wait until no request is inside.
    left: WaitQueue,
    /// Number of requests that get in through each slot before a thread has to wait for room.
    most: u64,
    /// Number of requests at which there is enough room for the waiters; below `most`.
    enough: u64,
    /// A: requests that wait outside. Changes are AcqRel, as those of `counts`.
    outside: AtomicU64,
    /// A: true if a thread waits for room. Relaxed: the fences that are named at its uses order it.
    full: AtomicBool,
    /// Threads that wait for room.
    room: WaitQueue,
    fences: PhantomData<(F, L)>,
}

impl<F: AsymmetricPolicy, L: FencePolicy> Usage<F, L> {
    /// Creates empty counts for `slots` slots (at least one), with room for `most` (at least one)
    /// through each.
    pub fn new(slots: usize, most: u32) -> Self {
        F::prepare();
        let most = u64::from(most.max(1)).min(Generation::MOST);
        Self {
            counts: (0..slots.max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            depth: Depth::new(),
            generation: aside::AtomicU32::new(0),
            ages: Mutex::default(),
            left: WaitQueue::new(),
            most,
            enough: most - (most / 2).clamp(1, ROOM_BATCH),
            outside: AtomicU64::new(0),
            full: AtomicBool::new(false),
            room: WaitQueue::new(),
            fences: PhantomData,
        }
    }

    /// Enters through `slot`; `None` if the queue is frozen: the caller stays outside. If it waits
    /// there, it makes sure, behind ParkFence, that the queue is still frozen.
    #[must_use = "`None` means that the caller is not inside"]
    pub fn enter(&self, slot: usize) -> Option<Generation> {
        if self.is_frozen() {
            return None; // Peek
        }
        let generation = Generation(self.generation.load(Ordering::Relaxed));
        self.counts[slot].fetch_add(generation.one(), Ordering::AcqRel); // Count
        F::light(); // EnterFence, pairs with FreezeFence
        if self.depth.is_zero() {
            return Some(generation);
        }
        self.exit(slot, generation);
        None
    }

    /// Leaves through the slot through which the caller entered, of the generation in which it did.
    pub fn exit(&self, slot: usize, generation: Generation) {
        let one = generation.one();
        let was = self.counts[slot].fetch_sub(one, Ordering::AcqRel); // Uncount
        debug_assert!(
            generation.of(was) != 0,
            "somebody left slot {slot} who had not entered there"
        );
        F::light(); // ExitFence, pairs with FreezeFence and FullFence
        if was == one && self.depth.get() != 0 {
            self.tell_if_last();
        }
        if Generation::sum(was) == self.enough + 1 {
            self.tell_of_room();
        }
    }

    /// Returns a lower bound of the age of the oldest request inside; `None` if there is none. It
    /// is exact to a second if it is asked each second: a request counts as old as the end of the
    /// generation in which it entered.
    pub fn oldest(&self, now: Stamp) -> Option<Duration> {
        let mut ages = self.ages.lock();
        let current = Generation(self.generation.load(Ordering::Relaxed));
        let is_used = |generation: Generation| {
            self.counts.iter().any(|count| generation.of(count.load(Ordering::Relaxed)) != 0)
        };
        let used = Generation::all().filter(|generation| is_used(*generation));
        let age = |Generation(number)| now.since(ages.ended[number as usize]);
        let ages_of = used.map(|generation| match generation == current {
            true => Duration::ZERO,
            false => age(generation),
        });
        let oldest = ages_of.max();
        if now.since(ages.began) >= Generation::PERIOD {
            let free = Generation::all().find(|one| *one != current && !is_used(*one));
            if let Some(Generation(next)) = free {
                ages.ended[current.0 as usize] = now;
                ages.began = now;
                self.generation.store(next, Ordering::Relaxed);
            }
        }
        oldest
    }

    /// Wakes the freezer if no count is left. The caller has emptied a count of a frozen queue.
    #[cold]
    fn tell_if_last(&self) {
        L::full(); // LeftFence, pairs with itself
        if self.is_empty() {
            self.left.tell();
        }
    }

    /// Counts one more request outside: the caller has been turned away, and puts the request there
    /// now.
    pub fn park(&self) {
        self.outside.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts one request less outside.
    pub fn unpark(&self) {
        let was = self.outside.fetch_sub(1, Ordering::AcqRel);
        F::light(); // ExitFence
        if was <= self.most_outside() {
            self.tell_of_room();
        }
    }

    /// Makes the waiters for room look, if there may be any.
    #[inline]
    fn tell_of_room(&self) {
        if self.full.load(Ordering::Relaxed) && self.full.swap(false, Ordering::AcqRel) {
            self.room.tell();
        }
    }

    fn most_outside(&self) -> u64 {
        self.most.saturating_mul(self.counts.len() as u64)
    }

    /// Returns true if not more than `bound` are inside through `slot`, and not too many outside.
    fn is_below(&self, slot: usize, bound: u64) -> bool {
        Generation::sum(self.counts[slot].load(Ordering::Acquire)) <= bound
            && self.outside.load(Ordering::Acquire) < self.most_outside()
    }

    /// Returns true if one more may come through `slot` without waiting for room.
    #[inline]
    pub fn has_room(&self, slot: usize) -> bool {
        !self.full.load(Ordering::Relaxed) && self.is_below(slot, self.most - 1)
    }

    /// Blocks until there is room for one more through `slot`. It promises no place: others may be
    /// quicker.
    pub fn wait_for_room(&self, slot: usize) {
        self.room.wait(|| {
            let room = self.has_room(slot) || {
                self.full.store(true, Ordering::Relaxed); // Full
                F::heavy(); // FullFence, pairs with ExitFence
                self.is_below(slot, self.enough)
            };
            room.then_some(())
        });
        // A waiter that found room before its wake-up wakes the others.
        self.tell_of_room();
    }

    /// Lets no request in from now on. Doesn't wait.
    pub fn start_freeze(&self) {
        self.depth.raise(); // Freeze
        F::heavy(); // FreezeFence
    }

    /// Blocks until no request is inside.
    pub fn wait_empty(&self) {
        self.left.wait(|| self.is_empty().then_some(()));
    }

    /// Undoes one freeze of the caller's. Returns true if no other freeze is in force: then the
    /// heavy fence has been issued.
    #[must_use = "true obliges the caller to let in those who wait outside"]
    pub fn unfreeze(&self) -> bool {
        let thawed = self.depth.lower();
        if thawed {
            F::heavy(); // ThawFence, pairs with the ParkFence of the waiters outside
        }
        thawed
    }

    /// Returns true if the queue is frozen, behind the light fence: for a thread that has just
    /// published that it waits outside (ParkFence).
    pub fn is_frozen_fenced(&self) -> bool {
        F::light();
        self.is_frozen()
    }

    /// Returns true if the queue was frozen a moment ago.
    pub fn is_frozen(&self) -> bool {
        !self.depth.is_zero()
    }

    /// Returns how many are inside, roughly while they move.
    pub fn inside(&self) -> u64 {
        self.counts.iter().map(|count| Generation::sum(count.load(Ordering::Relaxed))).sum()
    }

    /// Returns true if no request is inside. Exact only while frozen: then no count leaves zero
    /// except for a moment, by a request that is turned away. Acquire: the writes of the requests
    /// that left are visible.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.load(Ordering::Acquire) == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admission::gate::tests::{Counted, light_fences};

    #[test]
    fn a_request_to_a_frozen_queue_is_never_counted() {
        let usage = Usage::<Counted>::new(1, 8);
        usage.start_freeze();
        assert_eq!(usage.enter(0), None);
        assert_eq!(light_fences(), 0, "no count, so no fence behind it");
    }

    #[test]
    fn each_slot_has_its_share_of_the_room_and_a_waiter_waits_for_more_than_one_place() {
        let usage = Arc::new(Usage::<Asymmetric>::new(2, 4));
        let mut inside = Generation::default();
        for _ in 0..4 {
            assert!(usage.has_room(0));
            inside = usage.enter(0).unwrap();
        }
        assert!(!usage.has_room(0) && usage.has_room(1));
        assert!(usage.enter(0).is_some(), "one that may not wait goes on");
        let waiter = {
            let usage = Arc::clone(&usage);
            std::thread::spawn(move || usage.wait_for_room(0))
        };
        while usage.has_room(1) {
            std::thread::yield_now();
        }
        (0..3).for_each(|_| usage.exit(0, inside));
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

    /// Returns the time after this many seconds.
    fn at(seconds: u64) -> Stamp {
        Stamp::from_nanos(1_000_000_000 * (1_000 + seconds))
    }

    #[test]
    fn the_oldest_is_as_old_as_the_end_of_the_second_in_which_it_came() {
        let usage = Usage::<Asymmetric>::new(2, 8);
        let oldest = |seconds| usage.oldest(at(seconds)).map(|age| age.as_secs());
        assert_eq!(oldest(0), None);
        let stuck = usage.enter(1).unwrap();
        assert_eq!(oldest(1), Some(0), "the second in which it came ends now");
        // Others come and go meanwhile, and more seconds pass than there are generations.
        for second in 2..20 {
            let quick = usage.enter(0).unwrap();
            assert_eq!(oldest(second), Some(second - 1));
            usage.exit(0, quick);
        }
        let second = usage.enter(0).unwrap();
        assert_eq!((oldest(20), usage.inside()), (Some(19), 2));
        assert_eq!(oldest(21), Some(20));
        usage.exit(1, stuck);
        assert_eq!(oldest(30), Some(10), "the one that came next, in the second that ended at 20");
        usage.exit(0, second);
        assert_eq!((oldest(31), usage.inside()), (None, 0));
    }

    #[test]
    fn with_one_left_in_each_generation_the_oldest_is_still_known() {
        let usage = Usage::<Asymmetric>::new(1, 8);
        let oldest = |seconds| usage.oldest(at(seconds)).map(|age| age.as_secs());
        let mut inside = Vec::new();
        for second in 1..=10 {
            inside.push(usage.enter(0).unwrap());
            assert_eq!(oldest(second), Some(second - 1));
        }
        usage.exit(0, inside.remove(0));
        assert_eq!(oldest(11), Some(9));
        for generation in inside {
            usage.exit(0, generation);
        }
        assert_eq!(oldest(12), None);
    }

    #[test]
    fn a_count_is_zero_when_all_have_left_however_many_they_were() {
        let usage = Usage::<Asymmetric>::new(1, u32::MAX);
        let first = usage.enter(0).unwrap();
        // More than its number can hold.
        usage.counts[0].fetch_add(5 << Generation::BITS, Ordering::Relaxed);
        assert!(!usage.is_empty() && usage.inside() > 0);
        usage.counts[0].fetch_sub(5 << Generation::BITS, Ordering::Relaxed);
        usage.exit(0, first);
        assert!(usage.is_empty());
    }
}
