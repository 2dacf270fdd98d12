//! The clock that product code reads, and histograms of times.
//!
//! It is the system's monotonic clock. Under loom it stands still. Shuttle has no time: there the clock stands still, but for a
//! wait whose time runs out, which may happen at any moment: it moves the clock on to its end. So
//! code that compares deadlines sees what it would see on a machine whose threads are arbitrarily
//! slow, and a seed replays it exactly.

mod histogram;

pub use histogram::{Histogram, Latencies};

use crate::facade::backend::clock;

/// Now. Any context. Take a later one, and [`duration_since`](std::time::Instant::duration_since), for what an
/// `Instant` says with `elapsed`: that would ask the system.
#[inline]
pub fn now() -> std::time::Instant {
    clock::now()
}

/// A moment, as nanoseconds of the monotonic clock: one word, for what is written by one thread and read
/// by others. Meaningful within one run of the system only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Stamp(u64);

impl Stamp {
    /// Now, to the nanosecond: some 25 ns to read, more on a virtual machine. Any context.
    #[inline]
    pub fn precise() -> Stamp {
        Stamp(clock::precise())
    }

    /// Now, to the timer tick: up to 10 ms ago, but read in some 5 ns. Any context.
    #[inline]
    pub fn coarse() -> Stamp {
        Stamp(clock::coarse())
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

#[cfg(test)]
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
