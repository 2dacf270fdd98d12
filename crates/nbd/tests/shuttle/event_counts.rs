//! Counts of the events of all schedules of a test, and a description of those of one schedule.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts over all schedules. They decide nothing.
pub(crate) struct EventCounts {
    pub(crate) seeds: AtomicU64,
    pub(crate) lives: AtomicU64,
    pub(crate) crashes: AtomicU64,
    pub(crate) power_failures: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// Starts that were refused with a reason.
    pub(crate) refused: AtomicU64,
    /// Blocks that were read with allowed contents.
    pub(crate) read: AtomicU64,
    /// Blocks of checkpoints that were read as they were then.
    pub(crate) images: AtomicU64,
    /// Flushes that a disk lied about, and writes that it put elsewhere.
    pub(crate) lies: AtomicU64,
    /// Wrong blocks that a check had reported.
    pub(crate) found: AtomicU64,
    /// Wrong blocks that no check could detect.
    pub(crate) silent: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl EventCounts {
    pub(crate) const fn new() -> EventCounts {
        const NONE: AtomicU64 = AtomicU64::new(0);
        EventCounts {
            seeds: NONE,
            lives: NONE,
            crashes: NONE,
            power_failures: NONE,
            requests: NONE,
            errors: NONE,
            refused: NONE,
            read: NONE,
            images: NONE,
            lies: NONE,
            found: NONE,
            silent: NONE,
        }
    }

    fn print(&self, test: &str) {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        eprintln!(
            "{test}: {} seeds, {} lives, {} crashes, {} power failures, {} requests, {} of them failed, {} starts \
             refused, {} blocks read, {} of checkpoints, {} lies, {} losses reported, {} silent",
            of(&self.seeds),
            of(&self.lives),
            of(&self.crashes),
            of(&self.power_failures),
            of(&self.requests),
            of(&self.errors),
            of(&self.refused),
            of(&self.read),
            of(&self.images),
            of(&self.lies),
            of(&self.found),
            of(&self.silent),
        );
    }
}

/// A guard that prints the counts of a test when that ends in any way.
pub(crate) struct Shown(pub(crate) &'static str, pub(crate) &'static EventCounts);

impl Drop for Shown {
    fn drop(&mut self) {
        self.1.print(self.0);
    }
}

/// Prints an event if `COREWISE_SAY` is set, to be read when a failed seed is replayed.
pub(crate) fn say(what: impl FnOnce() -> String) {
    static SAYS: OnceLock<bool> = OnceLock::new();
    if *SAYS.get_or_init(|| std::env::var_os("COREWISE_SAY").is_some()) {
        eprintln!("{}", what());
    }
}
