//! What each CPU's call target has done, as plain counters.

#[cfg(not(loom))]
use corewise_sync::atomic::{AtomicU64, Ordering};

/// A snapshot of one CPU's counters, since its target was made. They survive offline and online.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CallStats {
    /// The CPU.
    pub cpu: u32,
    /// Calls run, those that panicked among them.
    pub calls: u64,
    /// Calls run in place, because the caller was this CPU's target already; part of `calls`.
    pub inline: u64,
    /// Pushes that found the queue empty and so woke the target: the kernel's "interrupts sent".
    pub wakeups: u64,
    /// Times the target took what was in its queue: `calls / batches` is how many calls a wake-up
    /// served on average.
    pub batches: u64,
    /// Functions that panicked.
    pub panics: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) calls: Counter,
    pub(crate) inline: Counter,
    pub(crate) wakeups: Counter,
    pub(crate) batches: Counter,
    pub(crate) panics: Counter,
}

impl Stats {
    pub(crate) fn snapshot(&self, cpu: u32) -> CallStats {
        CallStats {
            cpu,
            calls: self.calls.get(),
            inline: self.inline.get(),
            wakeups: self.wakeups.get(),
            batches: self.batches.get(),
            panics: self.panics.get(),
        }
    }
}

/// One counter. Relaxed: it orders nothing.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct Counter {
    /// A: only ever added to.
    value: AtomicU64,
}

#[cfg(not(loom))]
impl Counter {
    pub(crate) fn add_one(&self) {
        self.value.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// In the models counters don't count: they decide nothing, and each would multiply the
/// interleavings.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Counter;

#[cfg(loom)]
impl Counter {
    pub(crate) fn add_one(&self) {}

    fn get(&self) -> u64 {
        0
    }
}
