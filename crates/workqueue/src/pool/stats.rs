//! What happened in a pool so far. Each worker counts for itself what is counted for each item; a
//! pool has the sums of those that have left.

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::sys;

use super::worker::Worker;

/// What happened in a pool so far, but for what its workers count.
#[derive(Debug, Default)]
pub(crate) struct PoolStats {
    /// What its former workers counted.
    pub(super) former: Ran,
    /// A: statistics: parked workers woken.
    pub(crate) wakeups: AtomicU64,
    /// A: statistics: items that were found to keep a core from others.
    pub(crate) caught: AtomicU64,
    /// A: statistics: threads made.
    pub(crate) threads_made: AtomicU64,
    /// A: statistics: time on CPUs of workers that have left, in nanoseconds.
    pub(crate) former_cpu_ns: AtomicU64,
}

/// What a worker counts. Written by it alone.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    /// A: statistics: items run.
    items: AtomicU64,
    /// A: statistics: of those, items taken over from a saturated pod.
    taken_over: AtomicU64,
}

impl Ran {
    /// So many more. Only the worker itself calls it: no read-modify-write.
    #[inline]
    pub(super) fn count(&self, items: u64, taken_over: u64) {
        let add = |counter: &AtomicU64, n: u64| {
            if n > 0 {
                counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
            }
        };
        add(&self.items, items);
        add(&self.taken_over, taken_over);
    }

    /// Items run. Asked by the worker itself.
    #[inline]
    pub(super) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// Items run, and taken over.
    pub(crate) fn read(&self) -> (u64, u64) {
        (self.items.load(Ordering::Relaxed), self.taken_over.load(Ordering::Relaxed))
    }
}

impl PoolStats {
    pub(crate) fn count(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Under the pool's lock, as it goes off the list of workers: what it counted stays, and its time,
    /// if the calling thread, which is about to end, is this worker's.
    pub(super) fn worker_leaves(&self, worker: &Worker) {
        let (items, taken_over) = worker.ran.read();
        self.former.count(items, taken_over);
        // One that is driven by hand has no thread of its own.
        if worker.tid().is_some() {
            if let Some(spent) = sys::own_cpu_time() {
                Self::count(&self.former_cpu_ns, u64::try_from(spent.as_nanos()).unwrap_or(0));
            }
        }
    }
}
