//! Medians, percentiles, and ratios of values that were measured in pairs.
//!
//! All functions take finite numbers. Each documents its result for an empty slice.

use fastrand::Rng;

/// Median and extremes of one metric over its runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The middle value, or the mean of the two middle ones if their number is even.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Number of values.
    pub runs: usize,
}

impl Summary {
    /// Creates the summary of these values, or returns `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let sorted = sorted(values);
        Some(Summary {
            median: median_of_sorted(&sorted)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            runs: sorted.len(),
        })
    }
}

/// Returns the middle value, or the mean of the two middle ones if their number is even. An empty
/// slice gives `None`.
pub fn median(values: &[f64]) -> Option<f64> {
    median_of_sorted(&sorted(values))
}

/// Returns the smallest sample that at least `percent` of all samples don't exceed (the
/// nearest-rank percentile). It is always a measured sample. An empty slice gives `None`.
///
/// # Panics
/// `percent` isn't between 0 and 100, or the samples aren't sorted (checked in debug builds).
pub fn percentile(sorted: &[u64], percent: f64) -> Option<u64> {
    assert!((0.0..=100.0).contains(&percent), "a percentile of {percent} percent");
    debug_assert!(sorted.is_sorted(), "percentiles are taken of sorted samples");
    // The millionth undoes a rounding error that may have raised a whole rank.
    let rank = (percent * sorted.len() as f64 / 100.0 - 1e-6).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// The ratio of `a` to `b`, from runs that were made in pairs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedRatio {
    /// The summary of the pairs' ratios.
    pub summary: Summary,
    /// Lower end of the 95 % interval of the median.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Resamples of a bootstrap, enough for two digits of an interval's ends.
const RESAMPLES: usize = 2_000;
/// Largest relative difference that counts as noise, even if the interval excludes 1: builds of the
/// same code differ by as much.
const SMALLEST_EFFECT: f64 = 0.05;

impl PairedRatio {
    /// Creates the ratio of the pairs `(a[i], b[i])`. No pairs, or a `b` that is 0, give `None`.
    ///
    /// The interval is the percentile bootstrap of the median. Pairs are drawn again and again with
    /// replacement, from a generator with this seed, so the same input gives the same interval.
    /// With fewer than about six pairs it is little more than the range.
    ///
    /// # Panics
    /// The two have different lengths.
    pub fn of(a: &[f64], b: &[f64], seed: u64) -> Option<PairedRatio> {
        assert_eq!(a.len(), b.len(), "a ratio of pairs takes two equally long lists");
        if b.contains(&0.0) {
            return None;
        }
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        let summary = Summary::of(&ratios)?;
        let (low, high) = bootstrap_median(&ratios, seed);
        Some(PairedRatio { summary, low, high })
    }

    /// Returns true if the two differ: the interval excludes 1, and the median is off by more than
    /// 5 %.
    pub fn is_beyond_noise(&self) -> bool {
        let excluded = self.low > 1.0 || self.high < 1.0;
        excluded && (self.summary.median - 1.0).abs() > SMALLEST_EFFECT
    }
}

/// Returns the middle 95 % of the medians of resamples of `values`, which isn't empty.
fn bootstrap_median(values: &[f64], seed: u64) -> (f64, f64) {
    let mut rng = Rng::with_seed(seed);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .filter_map(|_| {
            let drawn: Vec<f64> =
                (0..values.len()).map(|_| values[rng.usize(..values.len())]).collect();
            median(&drawn)
        })
        .collect();
    medians.sort_unstable_by(f64::total_cmp);
    let tail = RESAMPLES / 40;
    (medians[tail], medians[RESAMPLES - 1 - tail])
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(sorted[sorted.len() / 2 - 1], upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_middle_the_extremes_and_the_number_of_runs() {
        let summary = Summary::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!(summary, Summary { median: 3.0, min: 1.0, max: 5.0, runs: 3 });
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5), "the mean of the two middle ones");
        assert_eq!((Summary::of(&[]), median(&[])), (None, None));
    }

    #[test]
    fn a_percentile_is_a_sample_by_nearest_rank() {
        // A textbook example of the nearest-rank method.
        let samples = [15, 20, 35, 40, 50];
        for (percent, expected) in [(0.0, 15), (5.0, 15), (30.0, 20), (40.0, 20), (50.0, 35)] {
            assert_eq!(percentile(&samples, percent), Some(expected), "{percent} %");
        }
        assert_eq!(percentile(&samples, 100.0), Some(50));
        assert_eq!(percentile(&[], 50.0), None);
        let thousand: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&thousand, 99.9), Some(999), "rounding doesn't move the rank");
    }

    #[test]
    fn a_ratio_of_pairs_ignores_a_drift_that_hits_both() {
        // The machine gets ten times slower meanwhile, and b is half of a in every pair.
        let a = [100.0, 80.0, 40.0, 20.0, 10.0];
        let b: Vec<f64> = a.iter().map(|a| a / 2.0).collect();
        let ratio = PairedRatio::of(&a, &b, 1).unwrap();
        assert_eq!(ratio.summary, Summary { median: 2.0, min: 2.0, max: 2.0, runs: 5 });
        assert_eq!((ratio.low, ratio.high), (2.0, 2.0));
        assert!(ratio.is_beyond_noise());
        assert_eq!(
            (PairedRatio::of(&[1.0], &[0.0], 1), PairedRatio::of(&[], &[], 1)),
            (None, None)
        );
    }

    #[test]
    fn an_interval_that_holds_one_or_a_small_effect_is_noise() {
        let b = [10.0; 8];
        let same = [9.0, 11.0, 10.5, 9.5, 10.2, 9.8, 12.0, 8.0];
        let ratio = PairedRatio::of(&same, &b, 1).unwrap();
        assert!(ratio.low < 1.0 && ratio.high > 1.0, "{ratio:?}");
        assert!(!ratio.is_beyond_noise());

        let surely_but_little = [10.2; 8];
        let ratio = PairedRatio::of(&surely_but_little, &b, 1).unwrap();
        assert!(ratio.low > 1.0 && !ratio.is_beyond_noise());
    }

    #[test]
    fn the_interval_is_repeatable_lies_within_the_range_and_holds_the_median() {
        let a: Vec<f64> = (1..=20).map(f64::from).collect();
        let b = vec![10.0; 20];
        let ratio = PairedRatio::of(&a, &b, 42).unwrap();
        assert_eq!(ratio, PairedRatio::of(&a, &b, 42).unwrap());
        assert!(ratio.summary.min <= ratio.low && ratio.low < ratio.summary.median);
        assert!(ratio.summary.median < ratio.high && ratio.high <= ratio.summary.max);
    }

    /// Checks that the interval covers the true median about as often as it should. The test draws
    /// twenty values from a known distribution, many times.
    #[test]
    fn the_interval_covers_the_true_median_about_95_times_in_100() {
        let mut rng = Rng::with_seed(11);
        let ones = [1.0; 21];
        let covered = (0..300)
            .filter(|&trial| {
                // Uniform on 0.5 to 1.5: the true median is 1.
                let draws: Vec<f64> = (0..21).map(|_| 0.5 + rng.f64()).collect();
                let ratio = PairedRatio::of(&draws, &ones, trial).expect("21 pairs, none by zero");
                (ratio.low..=ratio.high).contains(&1.0)
            })
            .count();
        assert!((270..=298).contains(&covered), "{covered} of 300");
    }
}
