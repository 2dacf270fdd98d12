//! How many threads the workers of all pools may have together.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::pool::policy;

/// The threads of some [`WorkerPools`](crate::WorkerPools), counted.
#[derive(Debug)]
pub(crate) struct Threads {
    /// I: how many there may be, but for what each pool may have in any case.
    most: usize,
    /// A: how many there are. A count and nothing else: Relaxed.
    now: AtomicUsize,
    /// A: it was logged that there may be no more. Relaxed: a report more does no harm.
    told: AtomicBool,
}

/// A worker's place among them; dropped when the worker leaves.
pub(crate) struct Seat(Arc<Threads>);

impl Threads {
    pub(crate) fn new(most: usize) -> Arc<Threads> {
        let (now, told) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Threads { most, now, told })
    }

    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// A place for one more of a pool that has so many workers, this one included, of which `base` may
    /// hold a core at once. `None` where there are enough.
    pub(crate) fn seat(self: &Arc<Self>, workers: usize, base: usize) -> Option<Seat> {
        let take = |now| policy::may_have_thread(now, self.most, workers, base).then_some(now + 1);
        let taken = self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.is_ok().then(|| Seat(Arc::clone(self)))
    }

    /// Whether it is to be said that there are enough: once.
    pub(crate) fn is_to_be_told(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}
