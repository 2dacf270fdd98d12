//! The tiny item of the storms: sixteen captured bytes that count down once.

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{CachePadded, Completion};

/// A count of the items that are left, and the thread that the last one wakes.
///
/// It lives until the process ends. An item has an eight-byte reference to it, and no count of
/// references, so that a run measures the queue alone. A run leaks some hundred bytes by it.
#[derive(Debug)]
pub struct Countdown {
    /// A: Release for each item, and Acquire by the last, so that the woken thread sees the writes
    /// of all.
    left: CachePadded<AtomicUsize>,
    done: CachePadded<Completion>,
    /// I: the countdown that the end of this one counts down; a stripe has it.
    outer: Option<&'static Countdown>,
}

impl Countdown {
    /// Creates a countdown that ends when `items` were counted, at least one.
    pub fn new(items: usize) -> &'static Countdown {
        Self::leak(items, None)
    }

    /// Creates a countdown for each producer, on cache lines of its own, and one that ends when all
    /// have. Producers without an item have no part in it.
    pub fn striped(shares: &[usize]) -> (&'static Countdown, Vec<&'static Countdown>) {
        let outer = Self::new(shares.iter().filter(|&&share| share > 0).count());
        (outer, shares.iter().map(|&share| Self::leak(share, Some(outer))).collect())
    }

    fn leak(items: usize, outer: Option<&'static Countdown>) -> &'static Countdown {
        Box::leak(Box::new(Countdown {
            left: CachePadded::new(AtomicUsize::new(items)),
            done: CachePadded::new(Completion::new()),
            outer,
        }))
    }

    /// Counts one item.
    #[inline]
    pub fn count(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.last();
        }
    }

    #[cold]
    fn last(&self) {
        match self.outer {
            Some(outer) => outer.count(),
            None => self.done.complete(),
        }
    }

    /// Sleeps until all items are done.
    pub fn wait(&self) {
        self.done.wait();
    }
}

/// The sixteen bytes of a storm's item. Running it counts down once.
///
/// A runtime that takes closures gets `move || tiny.run()`. One whose items are messages may send
/// the value itself.
#[derive(Debug, Clone, Copy)]
pub struct Tiny {
    /// The countdown of the item.
    pub countdown: &'static Countdown,
    /// The number of the item, which is only read.
    pub payload: u64,
}

const _: () = assert!(size_of::<Tiny>() == 16);

impl Tiny {
    /// Runs the item.
    #[inline]
    pub fn run(self) {
        std::hint::black_box(self.payload);
        self.countdown.count();
    }
}
