//! The tiny item of the storms: sixteen captured bytes that count down once.

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{CachePadded, Completion};

/// How many items are left, and whom the last one wakes.
///
/// Lives until the process ends: an item carries eight bytes that lead here, and no count of its
/// own, so that nothing is measured but the queue. A run leaks some hundred bytes by it.
#[derive(Debug)]
pub struct Countdown {
    /// A: Release for each item, and Acquire by the last, so that the woken thread sees what all
    /// did.
    left: CachePadded<AtomicUsize>,
    done: CachePadded<Completion>,
    /// I: where the end of this one counts; a stripe has it.
    outer: Option<&'static Countdown>,
}

impl Countdown {
    /// Ends when `items` were counted, at least one.
    pub fn new(items: usize) -> &'static Countdown {
        Self::leak(items, None)
    }

    /// One for each producer, on cache lines of its own, and the one that ends when all did.
    /// Producers that have no item have no part in it.
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

    /// One item is done.
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

    /// Sleeps until all are done.
    pub fn wait(&self) {
        self.done.wait();
    }
}

/// What an item of a storm holds: sixteen bytes. Running it counts down once.
///
/// A runtime that takes closures is given `move || tiny.run()`. One whose items are messages may
/// send this itself.
#[derive(Debug, Clone, Copy)]
pub struct Tiny {
    /// Where it counts.
    pub countdown: &'static Countdown,
    /// Its number; read, and nothing else done with it.
    pub payload: u64,
}

const _: () = assert!(size_of::<Tiny>() == 16);

impl Tiny {
    /// What the item does.
    #[inline]
    pub fn run(self) {
        std::hint::black_box(self.payload);
        self.countdown.count();
    }
}
