//! The ring of a lane: a stack for its owner, a queue for thieves.
//!
//! `README.md` beside this file has the protocol. The comments here use its names for the steps.

use std::array;
use std::ptr::{self, NonNull};

use corewise_sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, aside};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy};
use corewise_sync::spin::Spin;
use corewise_sync::{CachePadded, hint};

/// Forks that a ring offers at most. Thieves take the oldest, so further and smaller ones needn't
/// be offered: their owner calls them, almost without cost.
const MOST: usize = if hint::IN_MODEL { 3 } else { 4 };
/// Slots. One more than `MOST` is needed: a thief reads the slot that it has moved the head past.
const CAPACITY: usize = (MOST + 1).next_power_of_two();

/// A value above every address: the owner pushes, if it can.
const NOWHERE: usize = usize::MAX;

/// The forks of one owner that are neither joined nor stolen.
pub(crate) struct Ring<T, P: AsymmetricPolicy = Asymmetric> {
    owner: CachePadded<OwnerSide>,
    thieves: CachePadded<ThievesSide>,
    slots: [RingSlot<T>; CAPACITY],
    policy: std::marker::PhantomData<P>,
}

/// Written by the owner.
struct OwnerSide {
    /// A: the position behind the newest fork. Each store is a Release, also one that takes a fork
    /// back: a thief that reads any of them by its Acquire sees the slots below.
    tail: AtomicUsize,
    /// O: forks ever pushed.
    pushed: aside::AtomicU64,
    /// O: the lowest address of the stack from which the owner pushes.
    floor: aside::AtomicUsize,
    /// A: above this address of its stack the owner keeps its forks: `floor` if the ring is full,
    /// or else [`NOWHERE`]. Written by the owner, and by a thief that has stolen one. A hint:
    /// Relaxed.
    keeps_above: aside::AtomicUsize,
}

/// Written by thieves, which hold the lock.
struct ThievesSide {
    /// A: the position of the oldest fork. Written under the lock.
    head: AtomicUsize,
    /// L: is the lock; its holder steals. The owner takes it to settle which side has the last
    /// fork.
    stealing: Spin<()>,
}

struct RingSlot<T> {
    /// A: written by the owner before it moves the tail behind it; Relaxed: the tail orders.
    fork: AtomicPtr<T>,
    /// A: number of the push; as `fork`.
    push: AtomicU64,
}

/// The oldest fork of a ring, as a thief has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OldestFork {
    position: usize,
    push: u64,
}

impl<T, P: AsymmetricPolicy> Ring<T, P> {
    /// Returns an empty ring.
    pub(crate) fn new() -> Self {
        P::prepare();
        let slot = |_| RingSlot { fork: AtomicPtr::new(ptr::null_mut()), push: AtomicU64::new(0) };
        Ring {
            owner: CachePadded::new(OwnerSide {
                tail: AtomicUsize::new(0),
                pushed: aside::AtomicU64::new(0),
                floor: aside::AtomicUsize::new(0),
                keeps_above: aside::AtomicUsize::new(NOWHERE),
            }),
            thieves: CachePadded::new(ThievesSide {
                head: AtomicUsize::new(0),
                stealing: Spin::new(()),
            }),
            slots: array::from_fn(slot),
            policy: std::marker::PhantomData,
        }
    }

    fn slot(&self, position: usize) -> &RingSlot<T> {
        &self.slots[position % CAPACITY]
    }

    /// Sets the address of its stack from which the owner of the ring, which is empty, pushes.
    pub(crate) fn set_floor(&self, floor: usize) {
        self.owner.floor.store(floor, Ordering::Relaxed);
    }

    /// Returns true if the owner, at this address of its stack, has enough of it left to push.
    #[inline]
    pub(crate) fn has_stack(&self, here: usize) -> bool {
        here >= self.owner.floor.load(Ordering::Relaxed)
    }

    /// Returns true if the owner, at this address of its stack, calls its forks itself, as it does
    /// in most joins. Once the ring has had `MOST` forks, it counts as full until it is empty, or a
    /// thief has stolen one: thieves seem to need no more.
    #[inline]
    pub(crate) fn keeps(&self, here: usize) -> bool {
        here > self.owner.keeps_above.load(Ordering::Relaxed)
    }

    /// Returns true if the owner may push. A ring without room counts as full from then on.
    pub(crate) fn has_room(&self) -> bool {
        let tail = self.owner.tail.load(Ordering::Relaxed);
        let filled = tail.wrapping_sub(self.thieves.head.load(Ordering::Relaxed)) as isize;
        if filled >= MOST as isize {
            // A thief has reported room late: its fork's place is taken again.
            self.keep();
        }
        self.owner.keeps_above.load(Ordering::Relaxed) == NOWHERE
    }

    /// Marks the ring as full. Called by the owner.
    fn keep(&self) {
        self.owner.keeps_above.store(self.owner.floor.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Carries out Push, by the owner of a ring with room: offers a fork to thieves until
    /// [`Ring::pop`]. Returns true if the ring was empty: a thief may have to be woken for the
    /// fork.
    #[inline]
    pub(crate) fn push(&self, fork: NonNull<T>) -> bool {
        let tail = self.owner.tail.load(Ordering::Relaxed);
        let head = self.thieves.head.load(Ordering::Relaxed);
        // One more if a thief has given up since the owner looked.
        debug_assert!(tail.wrapping_sub(head) as isize <= MOST as isize);
        let push = self.owner.pushed.load(Ordering::Relaxed) + 1;
        self.owner.pushed.store(push, Ordering::Relaxed);
        let slot = self.slot(tail);
        slot.fork.store(fork.as_ptr(), Ordering::Relaxed);
        slot.push.store(push, Ordering::Relaxed);
        self.owner.tail.store(tail.wrapping_add(1), Ordering::Release);
        // A thief that is about to give up may have moved the head beyond the tail.
        let filled = tail.wrapping_sub(head) as isize;
        if filled + 1 >= MOST as isize {
            self.keep();
        }
        filled <= 0
    }

    /// Returns true if the owner has popped this very fork just now, unstolen.
    #[inline]
    pub(crate) fn has_popped(&self, fork: NonNull<T>) -> bool {
        let popped = self.owner.tail.load(Ordering::Relaxed);
        self.slot(popped).fork.load(Ordering::Relaxed) == fork.as_ptr()
    }

    /// Carries out Pop, by the owner: takes the newest fork back. Returns false if a thief has
    /// stolen it. Each fork that was pushed is popped once, the newest first.
    #[inline]
    pub(crate) fn pop(&self) -> bool {
        let newest = self.owner.tail.load(Ordering::Relaxed).wrapping_sub(1);
        // Retreat. Release: older forks lie below.
        self.owner.tail.store(newest, Ordering::Release);
        P::light();
        // Compare.
        let head = self.thieves.head.load(Ordering::Relaxed);
        let left = newest.wrapping_sub(head) as isize;
        if left <= 0 {
            self.owner.keeps_above.store(NOWHERE, Ordering::Relaxed);
        }
        if left >= 0 { true } else { self.pop_contended(newest) }
    }

    /// Carries out Settle: a thief has stolen the newest fork, or is about to try.
    #[cold]
    #[inline(never)]
    fn pop_contended(&self, newest: usize) -> bool {
        // Thieves see the fork again, so one that has advanced may as well have it.
        self.owner.tail.store(newest.wrapping_add(1), Ordering::Release);
        let _stealing = self.thieves.stealing.lock();
        let head = self.thieves.head.load(Ordering::Relaxed);
        let mine = newest.wrapping_sub(head) as isize >= 0;
        if mine {
            self.owner.tail.store(newest, Ordering::Release);
        }
        mine
    }

    /// Returns true if the ring holds a fork (a moment ago).
    #[inline]
    pub(crate) fn has_forks(&self) -> bool {
        self.oldest().is_some()
    }

    /// Returns the oldest fork (a moment ago).
    #[inline]
    pub(crate) fn oldest(&self) -> Option<OldestFork> {
        let position = self.thieves.head.load(Ordering::Relaxed);
        let tail = self.owner.tail.load(Ordering::Relaxed);
        let filled = tail.wrapping_sub(position) as isize > 0;
        filled.then(|| OldestFork {
            position,
            push: self.slot(position).push.load(Ordering::Relaxed),
        })
    }

    /// Steals the oldest fork, by a thief, if that is still the one which it has seen, and `takes`
    /// agrees. `takes` is called with the ring locked. Returns `None` also if another thief holds
    /// the lock.
    pub(crate) fn steal(
        &self,
        seen: OldestFork,
        takes: impl FnOnce(NonNull<T>) -> bool,
    ) -> Option<NonNull<T>> {
        let _stealing = self.thieves.stealing.try_lock()?;
        let head = self.thieves.head.load(Ordering::Relaxed);
        if head != seen.position || !self.has_forks() {
            return None;
        }
        // Advance.
        self.thieves.head.store(head.wrapping_add(1), Ordering::Relaxed);
        P::heavy();
        // Check. Acquire pairs with each store of the owner.
        let tail = self.owner.tail.load(Ordering::Acquire);
        let is_there = tail.wrapping_sub(head) as isize > 0;
        let fork = is_there.then(|| {
            let slot = self.slot(head);
            let same = slot.push.load(Ordering::Relaxed) == seen.push;
            NonNull::new(slot.fork.load(Ordering::Relaxed)).filter(|_| same)
        });
        let fork = fork.flatten().filter(|fork| takes(*fork));
        if fork.is_some() {
            self.owner.keeps_above.store(NOWHERE, Ordering::Relaxed);
        } else {
            // GiveUp: the owner's Settle waits for the lock.
            self.thieves.head.store(head, Ordering::Relaxed);
        }
        fork
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thief_takes_only_the_fork_that_it_has_seen() {
        let (ring, forks) = (Ring::<u8>::new(), [1, 2]);
        let [one, other] = forks.each_ref().map(NonNull::from);
        assert!(ring.push(one));
        let seen = ring.oldest().expect("there is one");
        assert!(ring.pop());
        assert!(ring.push(other));
        assert_eq!(ring.steal(seen, |_| true), None, "another lies there");
        let seen = ring.oldest().expect("there is one");
        assert_eq!(ring.steal(seen, |_| true), Some(other));
        assert_eq!(ring.steal(seen, |_| true), None, "it is stolen");
        assert!(!ring.pop());
        assert!(!ring.has_forks());
    }

    #[test]
    fn a_ring_that_was_full_is_so_until_a_fork_is_stolen_or_none_is_left() {
        let (ring, fork) = (Ring::<u8>::new(), 1);
        let steal = || ring.oldest().and_then(|seen| ring.steal(seen, |_| true)).is_some();
        let fill = |there| {
            for pushed in there..MOST {
                assert!(ring.has_room() && !ring.keeps(1));
                assert_eq!(ring.push(NonNull::from(&fork)), pushed == 0, "whether it is the first");
            }
            assert!(!ring.has_room() && ring.keeps(1));
        };
        fill(0);
        assert!(ring.pop() && !ring.has_room(), "nobody has needed one");
        assert!(steal() && ring.has_room());
        fill(MOST - 2);
        for left in (0..MOST).rev() {
            assert!(ring.pop());
            assert_eq!(ring.has_room(), left == 0);
        }
    }
}
