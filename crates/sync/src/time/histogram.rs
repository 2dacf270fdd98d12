//! Histograms of times, which some threads write and any thread reads.

use std::fmt;
use std::time::Duration;

use crate::facade::atomic::Ordering;
use crate::facade::atomic::aside::AtomicU64;

/// Buckets to a power of two, as a power of two.
const FINE: u32 = 3;
/// Longest time (18 minutes). Longer ones count as this one.
const LONGEST: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket_of(LONGEST) + 1;

/// Returns the bucket of a time in nanoseconds.
const fn bucket_of(nanos: u64) -> usize {
    if nanos < 1 << FINE {
        return nanos as usize;
    }
    let nanos = if nanos > LONGEST { LONGEST } else { nanos };
    let power = nanos.ilog2() - FINE;
    ((power as usize) << FINE) + (nanos >> power) as usize
}

/// Returns the longest time of a bucket, in nanoseconds.
const fn end_of(bucket: usize) -> u64 {
    if bucket < 1 << FINE {
        return bucket as u64;
    }
    let power = (bucket >> FINE) as u32 - 1;
    let first = (bucket as u64 - ((power as u64) << FINE)) << power;
    first + (1 << power) - 1
}

/// The writer's side of a histogram of times. It has some 2.5 kB.
///
/// Buckets are eight to a power of two (as in HdrHistogram), so a time is known to an eighth. Times
/// over 18 minutes count as 18 minutes. Counting takes no lock. A reader sees each bucket as of
/// some moment, and those moments lie close together.
///
/// ```
/// use std::time::Duration;
/// use corewise_sync::time::Histogram;
///
/// let histogram = Histogram::new();
/// histogram.record(Duration::from_micros(10), 1);
/// let seen = histogram.read();
/// assert_eq!((seen.count(), seen.longest()), (1, Some(Duration::from_micros(10))));
/// ```
pub struct Histogram {
    /// A: written by the recorders. Relaxed: they order nothing.
    counts: [AtomicU64; BUCKETS],
    /// A: as above.
    longest: AtomicU64,
}

impl Histogram {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Histogram { counts: std::array::from_fn(|_| AtomicU64::new(0)), longest: AtomicU64::new(0) }
    }

    /// Counts a time, `weight` times. Any thread; if there are several, each of them pays for a
    /// line that all write.
    #[inline]
    pub fn record(&self, time: Duration, weight: u32) {
        let nanos = nanos_of(time);
        self.counts[bucket_of(nanos)].fetch_add(u64::from(weight), Ordering::Relaxed);
        if nanos > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Counts a time like [`Histogram::record`], if only one thread at a time ever records here: no
    /// locked operation. (With more, counts get lost.)
    #[inline]
    pub fn record_alone(&self, time: Duration, weight: u32) {
        let nanos = nanos_of(time);
        let count = &self.counts[bucket_of(nanos)];
        count.store(count.load(Ordering::Relaxed) + u64::from(weight), Ordering::Relaxed);
        if nanos > self.longest.load(Ordering::Relaxed) {
            self.longest.store(nanos, Ordering::Relaxed);
        }
    }

    /// Returns the counts so far.
    pub fn read(&self) -> Latencies {
        Latencies {
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            longest: self.longest.load(Ordering::Relaxed),
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

fn nanos_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Distribution of times: a histogram as it was at one moment.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Latencies {
    /// Counts by bucket. Empty if nothing was ever counted.
    counts: Vec<u64>,
    /// Longest time in nanoseconds.
    longest: u64,
}

impl Latencies {
    /// Returns the number of times. If only some are measured, each counts for those that weren't.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the time that `share` of all (0 to 1) didn't exceed: the end of its bucket, so up to
    /// an eighth too long. `None`: nothing was counted.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let histogram = corewise_sync::time::Histogram::new();
    /// assert_eq!(histogram.read().quantile(0.99), None);
    /// for micros in 1..=100 {
    ///     histogram.record(Duration::from_micros(micros), 1);
    /// }
    /// let p99 = histogram.read().quantile(0.99).expect("there are some");
    /// assert!(p99 >= Duration::from_micros(99) && p99 <= Duration::from_micros(100));
    /// ```
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let all = self.count();
        // Nearest rank; the first if `share` is 0 or no number.
        let rank = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })?;
        Some(Duration::from_nanos(end_of(bucket).min(self.longest)))
    }

    /// Returns the longest time, exactly. `None`: nothing was counted.
    pub fn longest(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.longest))
    }

    /// Returns the buckets that aren't empty: their longest time, and the number of times in them.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, &count)| (Duration::from_nanos(end_of(bucket)), count))
    }

    /// Adds the counts of another one.
    pub fn merge(&mut self, other: &Latencies) {
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.longest = self.longest.max(other.longest);
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets()).finish()
    }
}

impl fmt::Display for Latencies {
    /// Writes median, 99th percentile and longest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.quantile(0.5), self.quantile(0.99), self.longest()) {
            (Some(p50), Some(p99), Some(longest)) => {
                write!(f, "{p50:.1?} / {p99:.1?} / {longest:.1?}")
            }
            _ => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps_and_are_an_eighth_wide() {
        for bucket in 1..BUCKETS {
            let (first, last) = (end_of(bucket - 1) + 1, end_of(bucket));
            assert_eq!((bucket_of(first), bucket_of(last)), (bucket, bucket));
            assert!(last - first <= first / 8, "{first} to {last}");
        }
        assert_eq!(end_of(BUCKETS - 1), LONGEST);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    fn of(times: impl IntoIterator<Item = u64>) -> Latencies {
        let histogram = Histogram::new();
        for nanos in times {
            histogram.record(Duration::from_nanos(nanos), 1);
        }
        histogram.read()
    }

    #[test]
    fn quantiles_are_those_of_the_times_to_an_eighth_and_the_longest_is_exact() {
        let seen = of(1..=10_000);
        assert_eq!(seen.count(), 10_000);
        for (share, exact) in [(0.0, 1), (0.5, 5_000), (0.99, 9_900), (1.0, 10_000)] {
            let found = seen.quantile(share).expect("there are some").as_nanos();
            assert!(found >= exact && found <= exact + exact / 8, "{share}: {found}");
        }
        assert_eq!(seen.longest(), Some(Duration::from_nanos(10_000)));
        assert_eq!(of([]).quantile(0.5), None);
        assert_eq!(of([]).longest(), None);
    }

    #[test]
    fn a_sampled_time_counts_for_those_that_were_not_measured() {
        let histogram = Histogram::new();
        histogram.record_alone(Duration::from_nanos(100), 16);
        histogram.record_alone(Duration::from_secs(3600), 1);
        let mut seen = histogram.read();
        assert_eq!(seen.count(), 17);
        assert_eq!(seen.longest(), Some(Duration::from_secs(3600)), "beyond the last bucket too");
        assert!(seen.quantile(0.9).expect("there are some") < Duration::from_nanos(115));
        seen.merge(&of([7]));
        assert_eq!(seen.buckets().next(), Some((Duration::from_nanos(7), 1)));
        let mut empty = Latencies::default();
        empty.merge(&seen);
        assert_eq!(empty, seen);
    }

    #[test]
    fn several_writers_lose_no_count() {
        let histogram = Histogram::new();
        std::thread::scope(|scope| {
            for writer in 1..=4 {
                let histogram = &histogram;
                scope.spawn(move || {
                    for nanos in 0..20_000 {
                        histogram.record(Duration::from_nanos(nanos * writer), 2);
                    }
                });
            }
        });
        assert_eq!(histogram.read().count(), 160_000);
        assert_eq!(histogram.read().longest(), Some(Duration::from_nanos(79_996)));
    }
}
