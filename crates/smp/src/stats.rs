//! Statistics of each CPU's call target: counters, and the times of delivery and handlers.
//!
//! Only the target writes them (except the wake-ups, which are the callers'), so they need no
//! locked operation. They decide nothing.
//!
//! The file has also the call that a target runs, for readers from outside: the watchdog and the
//! dump. The target alone writes it, with plain stores. A reader that meets it in the middle of a
//! change reads again (a sequence lock); the target doesn't wait for a reader.

use std::panic::Location;
use std::time::Duration;
use std::{fmt, ptr};

use corewise_sync::atomic::Ordering;
use corewise_sync::atomic::aside::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
use corewise_sync::time::{Histogram, Latencies, Stamp};
use corewise_sync::{CachePadded, hint, text};
use corewise_topology::CpuId;

/// Number of calls of which one is timed to the nanosecond, and stands for the others in the
/// histograms.
///
/// A precise clock takes 25 to 50 ns to read, three times a call: as much as a call between two
/// cores that both spin. One in 16 is below 5 ns a call.
pub(crate) const SAMPLED: u32 = 16;

/// Returns how many calls a call stands for in the histograms.
///
/// A call that finds its target asleep costs a wake-up anyhow, so it is timed and stands for
/// itself. Of the others every sixteenth use of a cell is timed.
pub(crate) fn weight(target_sleeps: bool, use_of_cell: u32) -> u32 {
    if target_sleeps {
        1
    } else if use_of_cell % SAMPLED == 0 {
        SAMPLED
    } else {
        0
    }
}

/// Duration from which on a call is counted whether it was sampled or not: some ticks of the coarse
/// clock.
const LONG: Duration = Duration::from_millis(32);

/// Returns how often a time is counted, of a call of this weight. So the rare long ones are all
/// there, and each counts once.
pub(crate) fn measured(took: Duration, weight: u32) -> u32 {
    if took >= LONG { 1 } else { weight }
}

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
    /// Number of times that the target took its queue: `calls / batches` is the mean number of
    /// calls that a wake-up served.
    pub batches: u64,
    /// Functions that panicked.
    pub panics: u64,
}

pub(crate) struct Stats {
    own: CachePadded<TargetCounters>,
    /// A: pushes that woke the target, counted by callers. Relaxed: it orders nothing.
    wakeups: CachePadded<AtomicU64>,
}

/// Counters that the target writes, on cache lines of their own.
struct TargetCounters {
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
        let own = TargetCounters {
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

    pub(crate) fn running(&self) -> Option<RunSnapshot> {
        self.own.running.read()
    }

    /// Records that a push found the queue empty. Any thread.
    pub(crate) fn woke(&self) {
        self.wakeups.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the target took a batch. Only the target calls this, and all below.
    pub(crate) fn took_batch(&self) {
        self.own.batches.add_one();
    }

    /// Records that the call that begins next runs in place.
    pub(crate) fn inline(&self) {
        self.own.inline.add_one();
    }

    /// Records that a function panicked.
    pub(crate) fn panicked(&self) {
        self.own.panics.add_one();
    }

    /// Begins a call. [`Stats::end`] gets its end.
    #[inline]
    pub(crate) fn begin(&self, label: Label, queued: Queued) -> Timing {
        let own = &*self.own;
        own.calls.add_one();
        let outer = own.running.own();
        let weight = queued.weight();
        let since = read_clock(weight);
        own.running.starts(RunSnapshot { label, since });
        if let Some(queued) = queued.stamp() {
            count(&own.delivery, since.since(queued), weight);
        }
        Timing { since, weight, outer }
    }

    /// Ends the call that `begin` returned.
    #[inline]
    pub(crate) fn end(&self, timing: Timing) {
        let Timing { since, weight, outer } = timing;
        count(&self.own.handlers, read_clock(weight).since(since), weight);
        self.own.running.ends(outer);
    }
}

#[inline]
fn count(histogram: &Histogram, took: Duration, weight: u32) {
    let weight = measured(took, weight);
    if weight > 0 {
        histogram.record_alone(took, weight);
    }
}

/// Reads the clock: precisely for a call whose time is counted, coarsely for the others.
#[inline]
fn read_clock(weight: u32) -> Stamp {
    if weight > 0 { Stamp::precise() } else { Stamp::coarse() }
}

/// A call that runs.
#[must_use = "the call ends"]
pub(crate) struct Timing {
    since: Stamp,
    weight: u32,
    /// The call that had called it in place.
    outer: Option<RunSnapshot>,
}

/// The time when a call was queued, how many calls it stands for in the histograms, and whether a
/// future awaits it; one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queued(u64);

/// Flag: a future awaits it.
const AWAITED: u64 = 1 << WEIGHT_BITS;
const WEIGHT_BITS: u32 = 5;
/// Position of the nanoseconds, which are above. They last for nine years after the system's start.
const SHIFT: u32 = WEIGHT_BITS + 1;
const _: () = assert!(SAMPLED < 1 << WEIGHT_BITS);

impl Queued {
    /// Value of a call that never was in a queue.
    pub(crate) const NOT: Queued = Queued(0);
}

impl Queued {
    /// Returns the present time. A weight of 0: the call is timed coarsely, and counts only if it
    /// was long.
    #[inline]
    pub(crate) fn now(weight: u32) -> Queued {
        debug_assert!(weight < 1 << WEIGHT_BITS);
        Queued(read_clock(weight).nanos() << SHIFT | u64::from(weight))
    }

    /// Creates it from the result of [`Queued::word`].
    pub(crate) fn from_word(word: u64) -> Queued {
        Queued(word)
    }

    pub(crate) fn word(self) -> u64 {
        self.0
    }

    /// Returns the same time, for a call that a future awaits.
    pub(crate) fn and_awaited(self) -> Queued {
        Queued(self.0 | AWAITED)
    }

    /// Returns the same time, for a call that no future awaits.
    pub(crate) fn and_not_awaited(self) -> Queued {
        Queued(self.0 & !AWAITED)
    }

    /// Returns true if a future awaits it.
    pub(crate) fn is_awaited(self) -> bool {
        self.0 & AWAITED != 0
    }

    fn weight(self) -> u32 {
        self.0 as u32 & ((1 << WEIGHT_BITS) - 1)
    }

    /// Returns the time; `None` if it was never queued.
    pub(crate) fn stamp(self) -> Option<Stamp> {
        (self.0 >> SHIFT != 0).then(|| Stamp::from_nanos(self.0 >> SHIFT))
    }
}

/// A counter, which its owner alone adds to. Relaxed: it orders nothing.
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

/// Number of reads after which a reader takes it that calls come and go faster than it can read.
const LOOKS: usize = 8;

/// The data of a call for reports. All of it lives forever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    /// Function that returns the name of its function.
    pub(crate) name: fn() -> &'static str,
    /// The place where it was made.
    pub(crate) site: &'static Location<'static>,
    /// The CPU on which it was made, if it is known.
    pub(crate) source: Option<CpuId>,
    /// The address of its cell, if that stays its own while it runs; else 0.
    pub(crate) call: usize,
}

/// A reading of a target's present call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunSnapshot {
    pub(crate) label: Label,
    /// The time when it began: to the tick only, mostly.
    pub(crate) since: Stamp,
}

/// The place where a target records its present call.
#[derive(Debug)]
pub(crate) struct Running {
    /// A: odd while the fields below change.
    turn: AtomicU32,
    /// A: the CPU of the caller, or `u32::MAX`.
    source: AtomicU32,
    /// A: a `fn() -> &'static str`, or null while nothing runs.
    name: AtomicPtr<()>,
    /// A: a `&'static Location`, or null before the first.
    site: AtomicPtr<Location<'static>>,
    /// A: the address of the call's cell, or 0.
    call: AtomicUsize,
    /// A: a stamp.
    since: AtomicU64,
}

impl Running {
    pub(crate) fn new() -> Self {
        Running {
            turn: AtomicU32::new(0),
            source: AtomicU32::new(u32::MAX),
            name: AtomicPtr::new(ptr::null_mut()),
            site: AtomicPtr::new(ptr::null_mut()),
            call: AtomicUsize::new(0),
            since: AtomicU64::new(0),
        }
    }

    /// Starts a call. Only the target itself calls this.
    #[inline]
    pub(crate) fn starts(&self, shown: RunSnapshot) {
        let RunSnapshot { label, since } = shown;
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        // Release: a thread that reads one of the stores below, and then fences, sees the odd turn.
        fence(Ordering::Release);
        self.name.store(label.name as *mut (), Ordering::Relaxed);
        self.site.store(ptr::from_ref(label.site).cast_mut(), Ordering::Relaxed);
        self.source.store(label.source.map_or(u32::MAX, CpuId::number), Ordering::Relaxed);
        self.call.store(label.call, Ordering::Relaxed);
        self.since.store(since.nanos(), Ordering::Relaxed);
        // Release pairs with the Acquire in `read`: with this turn comes all of the above.
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// Ends a call; another one continues that had called it in place. Only the target itself calls
    /// this.
    #[inline]
    pub(crate) fn ends(&self, outer: Option<RunSnapshot>) {
        match outer {
            None => self.name.store(ptr::null_mut(), Ordering::Relaxed),
            Some(outer) => self.starts(outer),
        }
    }

    /// Returns the present call, for the target itself.
    #[inline]
    pub(crate) fn own(&self) -> Option<RunSnapshot> {
        if self.name.load(Ordering::Relaxed).is_null() { None } else { self.read() }
    }

    /// Returns the call that ran a moment ago; `None` if there was none, or if it changes all the
    /// time.
    pub(crate) fn read(&self) -> Option<RunSnapshot> {
        for _ in 0..LOOKS {
            let turn = self.turn.load(Ordering::Acquire);
            let name = self.name.load(Ordering::Relaxed);
            let site = self.site.load(Ordering::Relaxed);
            let source = self.source.load(Ordering::Relaxed);
            let call = self.call.load(Ordering::Relaxed);
            let since = self.since.load(Ordering::Relaxed);
            // Acquire pairs with the Release fence in `starts`.
            fence(Ordering::Acquire);
            if turn % 2 != 0 || self.turn.load(Ordering::Relaxed) != turn {
                hint::spin_loop();
                continue;
            }
            if name.is_null() || site.is_null() {
                return None;
            }
            // SAFETY: not null, and only `starts` stores others: pointers of `&'static Location`s.
            let site: &'static Location<'static> = unsafe { &*site };
            // SAFETY: not null, so it is what `starts` stored: a pointer of just this type.
            let name = unsafe { std::mem::transmute::<*mut (), fn() -> &'static str>(name) };
            let source = (source != u32::MAX).then_some(CpuId::new(source));
            let since = Stamp::from_nanos(since);
            return Some(RunSnapshot { label: Label { name, site, source, call }, since });
        }
        None
    }
}

/// A call that a call target runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningCall {
    /// The name of the function, as the compiler has it.
    pub function: &'static str,
    /// The place of the call in the source.
    pub site: &'static Location<'static>,
    /// The CPU from which it was called, if it is known.
    pub source: Option<CpuId>,
    /// Time for which it has run, to some milliseconds.
    pub since: Duration,
}

impl RunningCall {
    pub(crate) fn of(shown: RunSnapshot) -> RunningCall {
        RunningCall {
            function: (shown.label.name)(),
            site: shown.label.site,
            source: shown.label.source,
            since: Stamp::precise().since(shown.since),
        }
    }
}

impl fmt::Display for RunningCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunningCall { function, site, source, since } = self;
        let function = text::name(function);
        write!(f, "{function}, called at {site}")?;
        if let Some(source) = source {
            write!(f, " on CPU {source}")?;
        }
        write!(f, ", for {since:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_sixteen_is_timed_and_each_that_wakes_or_takes_long() {
        let hot: u32 = (0..1600).map(|use_of_cell| weight(false, use_of_cell)).sum();
        assert_eq!(hot, 1600, "those that are timed stand for all");
        assert_eq!((0..1600).filter(|&n| weight(false, n) > 0).count(), 100);
        assert_eq!(weight(true, 1), 1);
        assert_eq!(measured(LONG, 0), 1);
        assert_eq!(measured(LONG, SAMPLED), 1);
        assert_eq!(measured(LONG / 2, 0), 0);
        assert_eq!(measured(LONG / 2, SAMPLED), SAMPLED);
    }
    use std::panic::Location;

    fn label() -> Label {
        Label { name: || "tested", site: Location::caller(), source: None, call: 0 }
    }

    #[test]
    fn a_sampled_call_is_timed_from_its_push_and_counts_for_others() {
        let stats = Stats::new();
        let timing = stats.begin(label(), Queued::now(SAMPLED));
        assert_eq!(stats.delivery().count(), SAMPLED.into());
        assert_eq!(stats.running().map(|shown| (shown.label.name)()), Some("tested"));
        stats.end(timing);
        assert_eq!(stats.handlers().count(), SAMPLED.into());
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
    fn when_it_was_queued_its_weight_and_who_awaits_it_share_a_word() {
        let before = Stamp::precise();
        let queued = Queued::now(SAMPLED);
        assert_eq!(Queued::from_word(queued.word()), queued);
        assert!(queued.stamp() >= Some(before));
        assert_eq!(queued.weight(), SAMPLED);
        let awaited = queued.and_awaited();
        assert!(awaited.is_awaited() && !queued.is_awaited());
        assert_eq!((awaited.stamp(), awaited.weight()), (queued.stamp(), queued.weight()));
        assert_eq!(Queued::NOT.stamp(), None);
    }
}

#[cfg(test)]
mod running_tests {
    use super::*;
    use std::sync::Arc;

    fn shown(number: u32) -> RunSnapshot {
        let name: fn() -> &'static str = if number % 2 == 0 { || "even" } else { || "odd" };
        let label =
            Label { name, site: Location::caller(), source: Some(CpuId::new(number)), call: 0 };
        RunSnapshot { label, since: Stamp::from_nanos(number.into()) }
    }

    #[test]
    fn a_reader_never_mixes_two_calls() {
        let running = Arc::new(Running::new());
        let target = {
            let running = Arc::clone(&running);
            std::thread::spawn(move || {
                for number in 0..20_000 {
                    running.starts(shown(number));
                }
                running.ends(None);
            })
        };
        while !target.is_finished() {
            if let Some(seen) = running.read() {
                let number = seen.label.source.expect("it is always known here").number();
                assert_eq!(seen.since.nanos(), number.into());
                assert_eq!((seen.label.name)() == "odd", number % 2 == 1);
            }
        }
        target.join().expect("no panic");
    }
}
