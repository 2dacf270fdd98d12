//! What each CPU's call target has done: counters, and how long delivery and handlers took.
//!
//! Only the target writes them (but for the wake-ups, which are the callers'), so it needs no locked
//! operation. It decides nothing.

use corewise_topology::CpuId;
use std::time::Duration;

use corewise_sync::CachePadded;
use corewise_sync::atomic::Ordering;
use corewise_sync::atomic::aside::AtomicU64;
use corewise_sync::time::{Histogram, Latencies, Stamp};

use crate::policy;
use crate::running::{Label, Running, Shown};

/// A snapshot of one CPU's counters, since its target was made. They survive offline and online.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallStats {
    /// The CPU.
    pub cpu: CpuId,
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

pub(crate) struct Stats {
    own: CachePadded<Own>,
    /// A: pushes that woke; the callers'. Relaxed: it orders nothing.
    wakeups: CachePadded<AtomicU64>,
}

/// What the target writes, on cache lines of its own.
struct Own {
    running: Running,
    calls: Counter,
    inline: Counter,
    batches: Counter,
    panics: Counter,
    delivery: Histogram,
    handlers: Histogram,
}

impl Stats {
    pub(crate) fn new() -> Self {
        let own = Own {
            running: Running::new(),
            calls: Counter::default(),
            inline: Counter::default(),
            batches: Counter::default(),
            panics: Counter::default(),
            delivery: Histogram::new(),
            handlers: Histogram::new(),
        };
        Stats { own: CachePadded::new(own), wakeups: CachePadded::new(AtomicU64::new(0)) }
    }

    pub(crate) fn snapshot(&self, cpu: CpuId) -> CallStats {
        let own = &*self.own;
        CallStats {
            cpu,
            calls: own.calls.get(),
            inline: own.inline.get(),
            wakeups: self.wakeups.load(Ordering::Relaxed),
            batches: own.batches.get(),
            panics: own.panics.get(),
        }
    }

    pub(crate) fn delivery(&self) -> Latencies {
        self.own.delivery.read()
    }

    pub(crate) fn handlers(&self) -> Latencies {
        self.own.handlers.read()
    }

    pub(crate) fn running(&self) -> Option<Shown> {
        self.own.running.read()
    }

    /// A push found the queue empty. Any thread.
    pub(crate) fn woke(&self) {
        self.wakeups.fetch_add(1, Ordering::Relaxed);
    }

    /// The target took a batch. The target only, as all below.
    pub(crate) fn took_batch(&self) {
        self.own.batches.add_one();
    }

    /// The call that begins next runs in place.
    pub(crate) fn inline(&self) {
        self.own.inline.add_one();
    }

    /// A function panicked.
    pub(crate) fn panicked(&self) {
        self.own.panics.add_one();
    }

    /// A call begins. Its end is told to [`Stats::end`].
    #[inline]
    pub(crate) fn begin(&self, label: Label, queued: Queued) -> Timing {
        let own = &*self.own;
        own.calls.add_one();
        let outer = own.running.own();
        let weight = queued.weight();
        let since = read_clock(weight);
        own.running.starts(Shown { label, since });
        if let Some(queued) = queued.stamp() {
            count(&own.delivery, since.since(queued), weight);
        }
        Timing { since, weight, outer }
    }

    /// The call that `begin` was told of is over.
    #[inline]
    pub(crate) fn end(&self, timing: Timing) {
        let Timing { since, weight, outer } = timing;
        count(&self.own.handlers, read_clock(weight).since(since), weight);
        self.own.running.ends(outer);
    }
}

#[inline]
fn count(histogram: &Histogram, took: Duration, weight: u32) {
    let weight = policy::measured(took, weight);
    if weight > 0 {
        histogram.record_alone(took, weight);
    }
}

/// A call whose time is counted is timed well, the others in passing.
#[inline]
fn read_clock(weight: u32) -> Stamp {
    if weight > 0 { Stamp::precise() } else { Stamp::coarse() }
}

/// A call that runs.
#[must_use = "the call ends"]
pub(crate) struct Timing {
    since: Stamp,
    weight: u32,
    /// What had called it in place.
    outer: Option<Shown>,
}

/// When a call was queued, how many calls it stands for in the histograms, and whether a future awaits it;
/// one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queued(u64);

/// A future awaits it.
const AWAITED: u64 = 1 << WEIGHT_BITS;
const WEIGHT_BITS: u32 = 5;
/// The nanoseconds are above. They last for nine years after the system's start.
const SHIFT: u32 = WEIGHT_BITS + 1;
const _: () = assert!(policy::SAMPLED < 1 << WEIGHT_BITS);

impl Queued {
    /// It never was in a queue.
    pub(crate) const NOT: Queued = Queued(0);
}

impl Queued {
    /// Now. A weight of 0: it is timed in passing, and counts only where that shows that it took long.
    #[inline]
    pub(crate) fn now(weight: u32) -> Queued {
        debug_assert!(weight < 1 << WEIGHT_BITS);
        Queued(read_clock(weight).nanos() << SHIFT | u64::from(weight))
    }

    /// From what [`Queued::word`] gave.
    pub(crate) fn from_word(word: u64) -> Queued {
        Queued(word)
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// The same, and a future awaits it.
    pub(crate) fn and_awaited(self) -> Queued {
        Queued(self.0 | AWAITED)
    }

    /// The same, and no future awaits it.
    pub(crate) fn and_not_awaited(self) -> Queued {
        Queued(self.0 & !AWAITED)
    }

    /// Whether a future awaits it.
    pub(crate) fn is_awaited(self) -> bool {
        self.0 & AWAITED != 0
    }

    fn weight(self) -> u32 {
        self.0 as u32 & ((1 << WEIGHT_BITS) - 1)
    }

    /// When it was; `None` where it wasn't.
    pub(crate) fn stamp(self) -> Option<Stamp> {
        (self.0 >> SHIFT != 0).then(|| Stamp::from_nanos(self.0 >> SHIFT))
    }
}

/// One counter, which its owner alone adds to. Relaxed: it orders nothing.
#[derive(Default)]
struct Counter {
    /// A: written by the owner alone.
    value: AtomicU64,
}

impl Counter {
    fn add_one(&self) {
        self.value.store(self.get() + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::Location;

    fn label() -> Label {
        Label { name: || "tested", site: Location::caller(), source: None, call: 0 }
    }

    #[test]
    fn a_sampled_call_is_timed_from_its_push_and_counts_for_others() {
        let stats = Stats::new();
        let timing = stats.begin(label(), Queued::now(policy::SAMPLED));
        assert_eq!(stats.delivery().count(), policy::SAMPLED.into());
        assert_eq!(stats.running().map(|shown| (shown.label.name)()), Some("tested"));
        stats.end(timing);
        assert_eq!(stats.handlers().count(), policy::SAMPLED.into());
        let snapshot = stats.snapshot(CpuId::new(3));
        assert_eq!((snapshot.calls, snapshot.cpu), (1, CpuId::new(3)));
        assert!(stats.running().is_none());
    }

    #[test]
    fn a_call_that_is_timed_in_passing_counts_only_where_it_took_long() {
        let stats = Stats::new();
        let timing = stats.begin(label(), Queued::now(0));
        stats.end(timing);
        stats.end(stats.begin(label(), Queued::NOT));
        assert_eq!((stats.delivery().count(), stats.handlers().count()), (0, 0));
        let long_ago = Stamp::coarse().nanos() - 1_000_000_000;
        let timing = stats.begin(label(), Queued::from_word(long_ago << SHIFT));
        assert_eq!(stats.delivery().count(), 1);
        assert!(stats.delivery().longest() >= Some(Duration::from_secs(1)));
        stats.end(Timing { since: Stamp::from_nanos(long_ago), ..timing });
        assert_eq!(stats.handlers().count(), 1);
        assert_eq!(stats.snapshot(CpuId::new(0)).calls, 3);
    }

    #[test]
    fn a_call_in_place_is_shown_while_it_runs_and_its_caller_after() {
        let stats = Stats::new();
        let outer = stats.begin(label(), Queued::now(1));
        let inner = stats.begin(Label { name: || "inner", ..label() }, Queued::NOT);
        assert_eq!(stats.running().map(|shown| (shown.label.name)()), Some("inner"));
        stats.end(inner);
        assert_eq!(stats.running().map(|shown| (shown.label.name)()), Some("tested"));
        stats.end(outer);
    }

    #[test]
    fn when_it_was_queued_its_weight_and_who_awaits_it_share_a_word() {
        let before = Stamp::precise();
        let queued = Queued::now(policy::SAMPLED);
        assert_eq!(Queued::from_word(queued.word()), queued);
        assert!(queued.stamp() >= Some(before));
        assert_eq!(queued.weight(), policy::SAMPLED);
        let awaited = queued.and_awaited();
        assert!(awaited.is_awaited() && !queued.is_awaited());
        assert_eq!((awaited.stamp(), awaited.weight()), (queued.stamp(), queued.weight()));
        assert_eq!(Queued::NOT.stamp(), None);
    }
}
