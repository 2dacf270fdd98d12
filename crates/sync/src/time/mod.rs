//! The clock that product code reads, and histograms of times.
//!
//! It is the system's monotonic clock. Shuttle has no time: there the clock stands still, but for a
//! wait whose time runs out, which may happen at any moment: it moves the clock on to its end. So
//! code that compares deadlines sees what it would see on a machine whose threads are arbitrarily
//! slow, and a seed replays it exactly.

#[cfg(not(loom))]
mod histogram;

#[cfg(not(loom))]
pub use histogram::{Histogram, Latencies};

/// Now. Any context.
#[cfg(not(shuttle))]
#[inline]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// A moment, as nanoseconds of the monotonic clock: one word, for what is written by one thread and read
/// by others. Meaningful within one run of the system only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Stamp(u64);

impl Stamp {
    /// Now, to the nanosecond: some 25 ns to read, more on a virtual machine. Any context.
    #[inline]
    pub fn precise() -> Stamp {
        #[cfg(not(shuttle))]
        return Stamp::read(rustix::time::ClockId::Monotonic);
        #[cfg(shuttle)]
        return Stamp(model::nanos());
    }

    /// Now, to the timer tick: up to 10 ms ago, but read in some 5 ns. Any context.
    #[inline]
    pub fn coarse() -> Stamp {
        #[cfg(not(shuttle))]
        return Stamp::read(rustix::time::ClockId::MonotonicCoarse);
        #[cfg(shuttle)]
        return Stamp(model::nanos());
    }

    #[cfg(not(shuttle))]
    #[inline]
    fn read(clock: rustix::time::ClockId) -> Stamp {
        let now = rustix::time::clock_gettime(clock);
        // The clock begins when the system does: it is never negative, and the sum lasts for centuries.
        Stamp(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
    }

    /// From a number that [`Stamp::nanos`] gave.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Stamp {
        Stamp(nanos)
    }

    /// The number: never 0 but where the system has just begun.
    #[inline]
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// So much later.
    #[inline]
    pub fn plus(self, time: std::time::Duration) -> Stamp {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Stamp(self.0.saturating_add(nanos))
    }

    /// How much later it is than `earlier`; zero where it isn't. Between a precise and a coarse stamp that
    /// is a tick out.
    #[inline]
    pub fn since(self, earlier: Stamp) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(shuttle)]
pub use model::now;
#[cfg(shuttle)]
pub(crate) use model::{begin, move_on};

#[cfg(shuttle)]
mod model {
    use std::cell::Cell;
    use std::time::Instant;

    // One clock for each OS thread, which is a whole model each.
    std::thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
        static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Nanoseconds since the model's clock was first read, and one more.
    pub(super) fn nanos() -> u64 {
        let now = now();
        let began = BEGAN.get().unwrap_or(now);
        BEGAN.set(Some(began));
        u64::try_from(now.duration_since(began).as_nanos()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Now, in the model's time.
    pub fn now() -> Instant {
        let now = NOW.get().unwrap_or_else(Instant::now);
        NOW.set(Some(now));
        now
    }

    /// A schedule begins: its clock shows what every other's showed at first. (What rounds a time would else not do the
    /// same again where the schedule is replayed.)
    pub(crate) fn begin() {
        NOW.set(None);
        BEGAN.set(None);
    }

    /// Time passes, until `then`.
    pub(crate) fn move_on(then: Instant) {
        NOW.set(Some(now().max(then)));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stamps_go_forward_and_the_coarse_one_is_close_behind() {
        let first = Stamp::precise();
        let coarse = Stamp::coarse();
        let second = Stamp::precise();
        assert!(first.nanos() > 0 && second >= first && coarse <= second);
        assert_eq!(first.since(Stamp(second.0 + 1)), Duration::ZERO, "not later");
        assert_eq!(Stamp::from_nanos(second.nanos()), second);
        assert_eq!(Stamp(1500).since(Stamp(500)), Duration::from_micros(1));
    }
}
