//! How often something is told that may happen a million times a second.

use std::time::Duration;

use crate::spin::SpinLock;
use crate::time::Stamp;

/// So many at once.
const BURST: u32 = 8;
/// And one more after each such time.
const EVERY: Duration = Duration::from_secs(10);

/// Says which of many like messages go to the log: the first 8, then one every 10 seconds, which tells how many were left
/// out before it. One for each thing that the messages are about, so that none hides another's.
#[derive(Debug)]
pub struct Throttle {
    burst: u32,
    every: Duration,
    /// L: is the lock, held for a few instructions; guards the count.
    count: SpinLock<Count>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    /// How many may go now.
    may: u32,
    /// The time up to which `may` was counted.
    since: Stamp,
    left_out: u64,
}

impl Throttle {
    /// Nothing was told yet.
    pub fn new() -> Throttle {
        Throttle::with_rate(BURST, EVERY)
    }

    /// As [`Throttle::new`], with another first number, and another time between the later ones: a nanosecond at least.
    pub fn with_rate(burst: u32, every: Duration) -> Throttle {
        let count = Count { may: burst, since: Stamp::coarse(), left_out: 0 };
        Throttle { burst, every: every.max(Duration::from_nanos(1)), count: SpinLock::new(count) }
    }

    /// Whether this one is to be told; and how many were left out since the last one that was. Any context.
    #[must_use = "a caller that tells it anyway needn't ask"]
    pub fn admit(&self) -> Option<u64> {
        let now = Stamp::coarse();
        self.count.lock().admit(now, self.burst, self.every)
    }

    /// Counts so many as left out: they were admitted, and something else keeps them from being told. Any context.
    pub fn leave_out(&self, messages: u64) {
        let mut count = self.count.lock();
        count.left_out = count.left_out.saturating_add(messages);
    }

    /// Whether it is as good as new: nothing was left out that hasn't been told since, and it admits as many at once as at first.
    pub fn is_rested(&self) -> bool {
        let now = Stamp::coarse();
        let mut count = self.count.lock();
        count.refill(now, self.burst, self.every);
        count.may == self.burst && count.left_out == 0
    }

    /// How many were left out since the last one that was told. They count as told now.
    pub fn take_left_out(&self) -> u64 {
        std::mem::take(&mut self.count.lock().left_out)
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

impl Count {
    fn refill(&mut self, now: Stamp, burst: u32, every: Duration) {
        let more = now.since(self.since).as_nanos() / every.as_nanos();
        if more != 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            self.since = self.since.plus(every.saturating_mul(more));
            self.may = self.may.saturating_add(more).min(burst);
        }
    }

    fn admit(&mut self, now: Stamp, burst: u32, every: Duration) -> Option<u64> {
        self.refill(now, burst, every);
        match self.may.checked_sub(1) {
            Some(may) => {
                self.may = may;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_told_then_one_now_and_then_with_the_number_of_those_left_out() {
        let mut count = Count { may: BURST, since: Stamp::from_nanos(5), left_out: 0 };
        let at = |seconds| Stamp::from_nanos(5).plus(Duration::from_secs(seconds));
        let mut admit = |now| count.admit(now, BURST, EVERY);
        assert!((0..BURST).all(|_| admit(at(1)) == Some(0)));
        assert!((0..1_000).all(|_| admit(at(9)).is_none()));
        assert_eq!(admit(at(10)), Some(1_000));
        assert!((0..20).all(|_| admit(at(11)).is_none()));
        // A source that was quiet for long has its burst again, and no more.
        assert_eq!(admit(at(100_000)), Some(20));
        assert!((1..BURST).all(|_| admit(at(100_000)) == Some(0)));
        assert_eq!(admit(at(100_000)), None);
        // A clock that is behind gives nothing.
        assert_eq!(admit(at(0)), None);
        let throttle = Throttle::new();
        assert!((0..BURST).all(|_| throttle.admit() == Some(0)));
        assert_eq!((throttle.admit(), throttle.take_left_out()), (None, 1));
        assert_eq!(throttle.take_left_out(), 0);
    }

    #[test]
    fn what_was_admitted_and_not_told_is_counted_and_one_that_is_as_good_as_new_says_so() {
        let throttle = Throttle::with_rate(2, Duration::from_secs(1 << 30));
        assert!(throttle.is_rested());
        throttle.leave_out(3);
        assert!(!throttle.is_rested(), "three are to be told");
        assert_eq!(throttle.admit(), Some(3));
        assert!(!throttle.is_rested(), "it admits one less");
        assert_eq!((throttle.admit(), throttle.admit()), (Some(0), None));
        let fast = Throttle::with_rate(1, Duration::ZERO);
        let _ = fast.admit();
        while !fast.is_rested() {
            std::thread::yield_now();
        }
    }
}
