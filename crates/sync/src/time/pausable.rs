//! A clock that stands still while this process does.

use std::time::{Duration, Instant};

use super::now;

/// A clock for deadlines that another party has to meet, such as a client that is to take a reply.
///
/// A process can be stopped for any time (`SIGSTOP`, the freezer of cgroups, a paused container)
/// while the system's clock continues. A client that owes it something then seems to be late,
/// although the process didn't check. This clock counts at most one *slice* of the time between two
/// calls of [`now`](PausableClock::now). A pause of any length therefore costs a slice.
///
/// Its owner calls it at least once in each slice while a deadline is pending, so no wait is longer
/// than [`slice`](PausableClock::slice). Work that takes longer for another reason goes through
/// [`working`](PausableClock::working).
///
/// ```
/// use std::time::Duration;
/// use corewise_sync::time::PausableClock;
///
/// let mut clock = PausableClock::for_timeout(Duration::from_secs(60));
/// let deadline = clock.now() + Duration::from_secs(60);
/// // Each wait for the client is this long at most, and the clock is read after it.
/// let wait = clock.slice().min(deadline.saturating_duration_since(clock.now()));
/// assert!(wait <= Duration::from_secs(60) / 8);
/// ```
#[derive(Clone, Debug)]
pub struct PausableClock {
    slice: Duration,
    last: Instant,
    /// Total length of the pauses that were noticed.
    paused: Duration,
}

impl PausableClock {
    /// Number of slices in a timeout: the part of its timeout that a pause may cost a client. More
    /// slices are more wake-ups for each client that is waited for.
    const SLICES: u32 = 8;
    /// The shortest slice: below it a busy system looks like a pause.
    const SHORTEST: Duration = Duration::from_millis(1);

    /// Creates a clock for timeouts of at least this length. Its slice is an eighth of that, and at
    /// least a millisecond.
    pub fn for_timeout(timeout: Duration) -> PausableClock {
        let slice = (timeout / Self::SLICES).max(Self::SHORTEST);
        PausableClock { slice, last: now(), paused: Duration::ZERO }
    }

    /// Returns the time by this clock. It never goes back, and is never later than the system's.
    pub fn now(&mut self) -> Instant {
        self.read(now())
    }

    fn read(&mut self, real: Instant) -> Instant {
        let lap = real.saturating_duration_since(self.last);
        self.paused += lap.saturating_sub(self.slice);
        self.last = real;
        // Not before the moment at which the clock was created.
        real - self.paused
    }

    /// Returns the time for which the process did not run since the clock was created: everything
    /// beyond a slice between two calls of [`now`](PausableClock::now).
    pub fn paused(&self) -> Duration {
        self.paused
    }

    /// Returns the longest wait between two calls of [`now`](PausableClock::now).
    pub fn slice(&self) -> Duration {
        self.slice
    }

    /// Runs work that may take longer than a slice without being a pause, such as a look-up of a
    /// name. All of its time counts.
    pub fn working<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.now();
        let done = work();
        self.last = now();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_any_length_counts_as_one_slice() {
        let second = Duration::from_secs(1);
        let mut clock = PausableClock::for_timeout(8 * second);
        let begin = clock.last;
        assert_eq!(clock.read(begin + second), begin + second, "a whole slice counts");
        assert_eq!(clock.read(begin + 1000 * second), begin + 2 * second, "a pause is a slice");
        assert_eq!(clock.paused(), 998 * second);
        let after = clock.read(begin + 1000 * second + second / 2);
        assert_eq!(after, begin + 2 * second + second / 2, "then it goes on");
    }

    #[test]
    fn work_counts_in_full_and_the_shortest_slice_is_a_millisecond() {
        let mut clock = PausableClock::for_timeout(Duration::ZERO);
        assert_eq!(clock.slice(), Duration::from_millis(1));
        let made = clock.last;
        let begun = clock.working(|| {
            let begun = now();
            while now() < begun + Duration::from_millis(3) {
                std::hint::spin_loop();
            }
            begun
        });
        // A scheduler that kept this thread waiting before the work may have cost something.
        assert!(clock.paused <= begun - made, "{clock:?}");
    }
}
