//! An axis: where a value lies, and which ticks it has.

/// Values on a horizontal axis, as parts of its length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<f64>,
}

/// From this many times the smallest on, an even scale would press the small ones into a corner.
const LOG_FROM: f64 = 30.0;
/// At most so many ticks have room for their labels.
const TICKS: usize = 5;

impl Scale {
    /// From 0 up to the largest, for bars: what is twice as long is twice as much.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Scale {
        let high = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let high = if high > 0.0 { high } else { 1.0 };
        let step = step(high);
        let ticks = (0..=TICKS + 1).map(|n| n as f64 * step);
        let ticks = ticks.filter(|tick| *tick <= high * 1.001).collect();
        Scale { low: 0.0, high, log: false, ticks }
    }

    /// For points: by powers of ten where the values are far apart, else from 0.
    pub(super) fn for_points(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let positive = values.clone().filter(|value| value.is_finite() && *value > 0.0);
        let low = positive.clone().fold(f64::INFINITY, f64::min);
        let high = positive.fold(0.0, f64::max);
        if high < low * LOG_FROM || low == f64::INFINITY {
            return Scale::from_zero(values);
        }
        let (mut low, mut high) = (rounded(low, f64::floor), rounded(high, f64::ceil));
        // The ends of what a double can be.
        if !low.is_normal() {
            low = f64::MIN_POSITIVE;
        }
        if !high.is_finite() {
            high = f64::MAX;
        }
        let (first, last) = (low.log10().ceil() as i32, high.log10().floor() as i32);
        let every = ((last - first) as usize).div_ceil(TICKS).max(1);
        let ticks = (first..=last).step_by(every).map(|power| 10_f64.powi(power)).collect();
        Scale { low, high, log: true, ticks }
    }

    /// Where the value lies: 0 at the left end, 1 at the right one; nothing lies outside.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = match self.log {
            false => (value - self.low) / (self.high - self.low),
            true if value <= 0.0 => 0.0,
            true => (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10()),
        };
        if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }
    }

    /// The values that have a line and a label.
    pub(super) fn ticks(&self) -> &[f64] {
        &self.ticks
    }

    /// Whether equal distances are equal factors.
    pub(super) fn is_log(&self) -> bool {
        self.log
    }
}

/// 1, 2 or 5 times a power of ten, so that at most [`TICKS`] of them lie below `high`.
fn step(high: f64) -> f64 {
    let mut power = 10_f64.powf((high / TICKS as f64).log10().floor());
    if power == 0.0 {
        power = f64::MIN_POSITIVE;
    }
    let factors = [1.0, 2.0, 5.0, 10.0];
    let enough = factors.iter().find(|factor| high / (*factor * power) <= TICKS as f64);
    enough.unwrap_or(&10.0) * power
}

/// The next 1, 2 or 5 times a power of ten, upwards or downwards.
fn rounded(value: f64, round: fn(f64) -> f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let factor = value / power;
    let up = round(1.5) > 1.5;
    let steps = [1.0, 2.0, 5.0, 10.0];
    let found = match up {
        true => steps.into_iter().find(|step| *step >= factor * 0.999_999),
        false => steps.into_iter().rev().find(|step| *step <= factor * 1.000_001),
    };
    found.unwrap_or(1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_begin_at_zero_and_have_few_round_ticks() {
        let scale = Scale::from_zero([3.0, 31e6, 12e6].into_iter());
        assert_eq!(scale.ticks(), [0.0, 1e7, 2e7, 3e7]);
        assert_eq!((scale.at(0.0), scale.at(31e6), scale.at(15.5e6)), (0.0, 1.0, 0.5));
        for high in [1e-9, 0.7, 1.0, 4.99, 5.0, 99.0, 1e15, 1e300] {
            let ticks = Scale::from_zero([high].into_iter()).ticks().len();
            assert!((2..=TICKS + 1).contains(&ticks), "{high}: {ticks}");
        }
    }

    #[test]
    fn points_far_apart_lie_by_powers_of_ten() {
        let scale = Scale::for_points([90.0, 85_000.0].into_iter());
        assert!(scale.is_log());
        assert_eq!(scale.ticks(), [100.0, 1_000.0, 10_000.0, 100_000.0]);
        assert!(scale.at(90.0) > 0.0 && scale.at(90.0) < scale.at(100.0));
        assert!((scale.at(1000.0) - 2.0 * scale.at(223.606_8)).abs() < 0.2);
        assert!(!Scale::for_points([90.0, 300.0].into_iter()).is_log());
    }

    #[test]
    fn nothing_lies_outside_whatever_the_values() {
        for values in [
            vec![],
            vec![0.0],
            vec![0.0, 0.0],
            vec![0.0, 1e300, 1e-300],
            vec![f64::MIN_POSITIVE, f64::MAX],
            vec![f64::NAN, f64::INFINITY, 1.0],
            vec![-5.0, 3.0],
        ] {
            for scale in [
                Scale::from_zero(values.iter().copied()),
                Scale::for_points(values.iter().copied()),
            ] {
                for &value in values.iter().chain(scale.ticks()) {
                    let at = scale.at(value);
                    assert!((0.0..=1.0).contains(&at), "{value} of {values:?} at {at}");
                }
                assert!(scale.ticks().len() <= TICKS + 2, "{values:?}: {scale:?}");
            }
        }
    }
}
