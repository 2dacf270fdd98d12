//! The boxes of requests, kept for the next ones: a bounded cache for each CPU, so that no request
//! allocates.
//!
//! ```text
//! submitter (on the CPU)               completion (anywhere)
//! Take one at hand                     Return: push to the home of the CPU that it came from
//! none: Fetch all from home
//! none: make a new one, up to a bound
//! ```
//!
//! Boxes at hand belong to the holder of `busy`. No thread waits for it: a thread that finds it
//! held makes a box of its own, for once. A completion on another CPU touches the submitter's home
//! only, and the submitter touches that only once for all the boxes that came back meanwhile.
//!
//! A box keeps its queue alive, and the cache is part of the queue: a circle, which is cut when the
//! queue is dropped. Homes are closed then, and the thread that brings a box later drops it.
//! Otherwise the box could get into a cache that is never emptied again.
//! (`loom_a_box_that_comes_back_while_the_cache_is_closed_is_not_left_there`)
//!
//! The kernel has a request for each tag instead, made when the queue is made. Here a request gets
//! its tag when it goes to the driver, and any number may wait for one.

use std::ptr::NonNull;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{Batch, ClosableInbox, Node};

/// Number of boxes that are kept for one CPU. A thread with more requests in flight allocates the
/// others.
const KEPT: u32 = 512;

/// The result of [`Cache::take`].
pub enum BoxSource<N> {
    /// A box that was used before.
    Kept(N),
    /// Room for a new box, which may be returned.
    Make,
    /// Neither a box nor room: a new box is dropped after use.
    MakeOnce,
}

/// A cache of boxes for each CPU slot.
pub struct Cache<N: Node> {
    slots: Box<[CachePadded<CpuBoxes<N>>]>,
}

struct CpuBoxes<N: Node> {
    /// A: true while a thread takes. Acquire where it is set, Release where it is cleared.
    busy: AtomicBool,
    /// P: owned by the thread that set `busy`.
    hand: UnsafeCell<FreeBoxes<N>>,
    /// Boxes that came back, on a line that the taker rarely touches.
    home: CachePadded<ClosableInbox<N>>,
}

struct FreeBoxes<N> {
    free: Vec<N>,
    /// Number of boxes made that are kept.
    made: u32,
}

// SAFETY: only the thread that set `busy` touches `hand`; the nodes move between threads, so N:
// Send.
unsafe impl<N: Node + Send> Sync for CpuBoxes<N> {}

impl<N: Node> Cache<N> {
    /// Creates an empty cache for `slots` CPUs, at least one.
    pub fn new(slots: usize) -> Self {
        let slot = || CpuBoxes {
            busy: AtomicBool::new(false),
            hand: UnsafeCell::new(FreeBoxes { free: Vec::new(), made: 0 }),
            home: CachePadded::new(ClosableInbox::new()),
        };
        Self { slots: (0..slots.max(1)).map(|_| CachePadded::new(slot())).collect() }
    }

    /// Takes a box for a request of `slot`. Never waits.
    pub fn take(&self, slot: usize) -> BoxSource<N> {
        let slot = &*self.slots[slot];
        if slot.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return BoxSource::MakeOnce;
        }
        let taken = slot.hand.with_mut(|hand| {
            // SAFETY: this thread has set `busy`.
            let hand = unsafe { &mut *hand };
            if hand.free.is_empty() {
                hand.free.extend(slot.home.take());
            }
            match hand.free.pop() {
                Some(node) => BoxSource::Kept(node),
                None if hand.made < KEPT => {
                    hand.made += 1;
                    BoxSource::Make
                }
                None => BoxSource::MakeOnce,
            }
        });
        slot.busy.store(false, Ordering::Release);
        taken
    }

    /// Returns the place to which a box that is kept for `slot` comes back. It is a pointer, since
    /// the thread that pushes there may free the cache.
    pub fn home(&self, slot: usize) -> NonNull<ClosableInbox<N>> {
        NonNull::from(&*self.slots[slot].home)
    }

    /// Drops all boxes. Boxes that come back later are dropped by the threads that bring them. No
    /// box is taken any more.
    pub fn close(&self) {
        for slot in &self.slots {
            drop::<Batch<N>>(slot.home.close());
            if !slot.busy.swap(true, Ordering::Acquire) {
                // SAFETY: this thread has set `busy`, for ever.
                let free = slot.hand.with_mut(|hand| std::mem::take(unsafe { &mut (*hand).free }));
                drop(free);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use corewise_sync::inbox::{HasLink, Link};

    use super::*;

    struct Item(Link);

    // SAFETY: always the one field of `self`.
    unsafe impl HasLink for Item {
        fn link(&self) -> &Link {
            &self.0
        }
    }

    #[test]
    fn a_box_that_came_back_is_used_again_and_no_more_are_kept_than_there_is_room_for() {
        let cache = Cache::<Box<Item>>::new(2);
        for _ in 0..KEPT {
            assert!(matches!(cache.take(1), BoxSource::Make));
        }
        assert!(matches!(cache.take(1), BoxSource::MakeOnce));
        assert!(matches!(cache.take(0), BoxSource::Make), "the other CPU has its own");
        // SAFETY: the cache lives.
        let home = unsafe { cache.home(1).as_ref() };
        assert!(home.push(Box::new(Item(Link::new()))).is_ok());
        assert!(home.push(Box::new(Item(Link::new()))).is_ok());
        assert!(matches!(cache.take(1), BoxSource::Kept(_)));
        assert!(matches!(cache.take(1), BoxSource::Kept(_)));
        assert!(matches!(cache.take(1), BoxSource::MakeOnce));
        cache.close();
        assert!(home.push(Box::new(Item(Link::new()))).is_err());
    }
}
