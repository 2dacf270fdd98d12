//! Counters of a hardware queue and of a disk, kept so that the common path writes no line of
//! another CPU.

mod disk;

pub(crate) use disk::{Counters, weight};
pub use disk::{DiskStats, IoStats, OpStats};

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// The counters of a hardware queue. Read while it runs, the numbers are a moment apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HctxStats {
    /// Requests handed to the driver; several that were merged count as one.
    pub dispatched: u64,
    /// Requests that were merged into another one.
    pub merged: u64,
    /// Requests that went straight to the device below, without a tag: see
    /// [`Driver::remap`](crate::Driver::remap). They aren't among the dispatched ones.
    pub remapped: u64,
    /// Requests that the driver finished.
    pub completed: u64,
    /// Requests that have a tag now: inside the driver, or about to end. For a moment, it also
    /// counts tags that a runner has taken and gives back unused. So the count of a queue at rest
    /// is exact only if none runs (it is quiesced).
    pub in_flight: u64,
    /// Times that the driver gave a request back that it had started.
    pub requeues: u64,
    /// Times that a request was in the driver for longer than its time.
    pub timeouts: u64,
    /// Times that the dispatch stopped because no tag was free.
    pub tag_waits: u64,
    /// Times that the driver gave a request back because it was busy.
    pub busy: u64,
    /// Times that a thread ran the queue.
    pub runs: u64,
    /// Times that a runner looked again because another thread had come meanwhile, or more was
    /// pending.
    pub reruns: u64,
    /// Times that a run was refused: nothing was pending, or the queue was quiesced.
    pub refused: u64,
    /// Times that a thread found another one running and left the work to it.
    pub joined: u64,
    /// Times that a runner's budget was spent, or the driver was busy, and a worker went on.
    pub handed_over: u64,
    /// Runs that an unquiesce asked for, because requests were pending.
    pub after_unquiesce: u64,
}

/// Counters that only the runner writes: no read-modify-write is needed.
#[derive(Debug, Default)]
pub(crate) struct RunnerStats {
    /// A: written by the runner only, read by any thread; Relaxed, they order nothing else.
    pub(crate) dispatched: AtomicU64,
    /// A: as `dispatched`.
    pub(crate) merged: AtomicU64,
    /// A: as `dispatched`.
    pub(crate) remapped: AtomicU64,
    /// A: as `dispatched`.
    pub(crate) tag_waits: AtomicU64,
    /// A: as `dispatched`.
    pub(crate) busy: AtomicU64,
    /// A: as `dispatched`.
    pub(crate) runs: AtomicU64,
    /// A: as `dispatched`.
    pub(crate) reruns: AtomicU64,
}

impl RunnerStats {
    /// Adds to a counter of the runner, wrapping. The caller is the runner.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

/// Counters that each visitor writes that isn't the runner, on a line of its CPU.
#[derive(Debug, Default)]
pub(crate) struct VisitorStats {
    /// A: Relaxed counter, as all here.
    pub(crate) refused: AtomicU64,
    /// A: as `refused`.
    pub(crate) joined: AtomicU64,
    /// A: as `refused`.
    pub(crate) handed_over: AtomicU64,
    /// A: as `refused`.
    pub(crate) after_unquiesce: AtomicU64,
}

/// Each CPU slot's counters. They are the CPU's, and go with it to another hardware queue.
#[derive(Debug)]
pub(crate) struct PerSlot(Box<[CachePadded<VisitorStats>]>);

impl PerSlot {
    pub(crate) fn new(slots: usize) -> Self {
        Self((0..slots.max(1)).map(|_| CachePadded::new(VisitorStats::default())).collect())
    }

    pub(crate) fn of(&self, slot: usize) -> &VisitorStats {
        &self.0[slot]
    }

    /// Adds a slot's counters to `into`.
    pub(crate) fn add(&self, slot: usize, into: &mut HctxStats) {
        let slot = self.of(slot);
        into.refused += slot.refused.load(Ordering::Relaxed);
        into.joined += slot.joined.load(Ordering::Relaxed);
        into.handed_over += slot.handed_over.load(Ordering::Relaxed);
        into.after_unquiesce += slot.after_unquiesce.load(Ordering::Relaxed);
    }
}

/// Counts one more.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
