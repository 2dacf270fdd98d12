//! What is counted of a queue while it works.

use std::time::Duration;

use corewise_sync::atomic::{AtomicU64, Ordering};

use crate::report::QueueStats;

/// Counters of a pwq, or of all those that are gone.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// A: statistics: instances queued here that ran in another pod.
    pub(crate) overflowed: AtomicU64,
    /// A: statistics: instances found to compute for long.
    pub(crate) cpu_intensive: AtomicU64,
    /// A: statistics: instances found asleep.
    pub(crate) blocked_untold: AtomicU64,
    /// A: statistics: calls for the rescuer.
    pub(crate) maydays: AtomicU64,
    /// A: statistics: instances run by the rescuer.
    pub(crate) rescued: AtomicU64,
    /// A: statistics: instances queued here that were cancelled.
    pub(crate) cancelled: AtomicU64,
    /// A: statistics: nanoseconds that instances queued here have run, where the queue is timed.
    pub(crate) run_ns: AtomicU64,
    /// A: statistics: instances queued here that were run by their waiters.
    pub(crate) taken_back: AtomicU64,
}

impl Counters {
    /// Adds what was counted here.
    pub(crate) fn add_to(&self, stats: &mut QueueStats) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.overflowed += read(&self.overflowed);
        stats.cpu_intensive += read(&self.cpu_intensive);
        stats.blocked_untold += read(&self.blocked_untold);
        stats.maydays += read(&self.maydays);
        stats.rescued += read(&self.rescued);
        stats.cancelled += read(&self.cancelled);
        stats.run_time += Duration::from_nanos(read(&self.run_ns));
        stats.taken_back += read(&self.taken_back);
    }

    /// Adds what a pwq has counted, which is gone.
    pub(crate) fn keep(&self, of: &Counters) {
        let counters = [
            (&self.overflowed, &of.overflowed),
            (&self.cancelled, &of.cancelled),
            (&self.run_ns, &of.run_ns),
            (&self.taken_back, &of.taken_back),
        ];
        for (kept, counter) in counters {
            kept.fetch_add(counter.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
