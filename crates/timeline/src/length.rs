//! A length of time, and how exactly it is known.

use crate::units::duration;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A length of time between two bounds, which are equal if it was measured. Unless they are equal,
/// the text has a sign before the number: `≤82.9 ms` is at most that long, `≥1.20 s` at least,
/// `~8.00 ms` about. `?` isn't known.
///
/// ```
/// use corewise_timeline::Length;
/// use std::time::Duration;
///
/// let ms = Duration::from_millis;
/// let gap = Length::at_most(ms(80));
/// assert_eq!(gap.to_string(), "≤80.0 ms");
/// assert_eq!((gap + Length::exact(ms(400))).to_string(), "~440 ms");
/// assert_eq!((gap + Length::UNKNOWN).to_string(), "?");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Length {
    least: Duration,
    /// Upper bound. None: there is no such bound.
    most: Option<Duration>,
    /// The number to write, between the bounds.
    told: Option<Duration>,
}

impl Length {
    /// Length of nothing.
    pub const ZERO: Length = Length::exact(Duration::ZERO);
    /// A length that isn't known at all.
    pub const UNKNOWN: Length = Length { least: Duration::ZERO, most: None, told: None };

    /// Creates a length that was measured.
    pub const fn exact(time: Duration) -> Length {
        Length { least: time, most: Some(time), told: Some(time) }
    }

    /// Creates a length with an upper bound, which may be zero.
    pub const fn at_most(time: Duration) -> Length {
        Length { least: Duration::ZERO, most: Some(time), told: Some(time) }
    }

    /// Creates a length with a lower bound and no upper bound.
    pub fn at_least(time: Duration) -> Length {
        Length { least: time, most: None, told: Some(time).filter(|t| !t.is_zero()) }
    }

    /// Creates a length between two bounds, in any order.
    pub fn between(one: Duration, other: Duration) -> Length {
        Length::bounds(one.min(other), Some(one.max(other)))
    }

    /// Creates a length that was computed from others that are not all exact. It may be off either
    /// way.
    pub fn about(time: Duration) -> Length {
        Length { least: Duration::ZERO, most: None, told: Some(time) }
    }

    fn bounds(least: Duration, most: Option<Duration>) -> Length {
        let Some(most) = most else { return Length::at_least(least) };
        // A wide span shows its upper bound: its middle would look like a measurement.
        let told = if least < most / 5 * 4 { most } else { least + (most - least) / 2 };
        Length { least, most: Some(most), told: Some(told) }
    }

    /// Replaces the number to write by `time`, if the bounds allow it.
    pub fn telling(self, time: Duration) -> Length {
        let wide = self.least < time / 5 * 4 || time.is_zero();
        Length { told: if self.allows(time) && !wide { Some(time) } else { self.told }, ..self }
    }

    /// Replaces the number to write by `time`, which was computed from the same parts.
    pub(crate) fn telling_any(self, time: Duration) -> Length {
        Length { told: Some(time), ..self }
    }

    /// Limits the length to `whole`, of which it is a part.
    pub fn within(self, whole: Length) -> Length {
        let part = match whole.most.filter(|&most| self.most.is_none_or(|m| m > most)) {
            None => self,
            Some(bound) => {
                let length = Length::between(self.least.min(bound), bound);
                self.told.map_or(length, |told| length.telling(told.min(bound)))
            }
        };
        // A part shows no greater number than its whole, either.
        match part.told.zip(whole.told) {
            Some((told, all)) if told > all && part.allows(all) => part.telling_any(all),
            _ => part,
        }
    }

    /// Returns the lower bound.
    pub fn least(self) -> Duration {
        self.least
    }

    /// Returns the upper bound. `None`: there is no such bound.
    pub fn most(self) -> Option<Duration> {
        self.most
    }

    /// Returns the length, if it is known exactly.
    pub fn known(self) -> Option<Duration> {
        Some(self.least).filter(|_| self.is_exact())
    }

    /// Returns the number in its text, to sort and to draw by. `None`: there is no such number. For
    /// people, use the text with its sign.
    pub fn told(self) -> Option<Duration> {
        self.told
    }

    /// Returns true if the length is known exactly.
    pub fn is_exact(self) -> bool {
        self.most == Some(self.least)
    }

    /// Returns true if `time` lies within the bounds.
    pub fn allows(self, time: Duration) -> bool {
        self.least <= time && self.most.is_none_or(|most| time <= most)
    }

    /// Lowers the lower bound to zero.
    pub(crate) fn or_less(self) -> Length {
        Length::bounds(Duration::ZERO, self.most)
    }

    /// Returns a length that is one of the two, with the number of the first.
    pub(crate) fn or_as(self, other: Length) -> Length {
        let most = self.most.zip(other.most).map(|(one, other)| one.max(other));
        Length { least: self.least.min(other.least), most, told: self.told }
    }

    /// Returns the ratio to `other` as text: `1.99x`, `≥12.5x`.
    pub(crate) fn times(self, other: Length) -> String {
        let part = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
        match (self.known(), other.known()) {
            (Some(a), Some(b)) if !b.is_zero() => return format!("{:.2}x", part(a, b)),
            (_, Some(Duration::ZERO)) => return "-".into(),
            _ => {}
        }
        let least = other.most.filter(|most| !most.is_zero()).map(|most| part(self.least, most));
        let most = self.most.filter(|_| !other.least.is_zero()).map(|most| part(most, other.least));
        match (least.filter(|&least| least > 0.0), most) {
            (Some(least), Some(most)) if format!("{least:.2}") == format!("{most:.2}") => {
                format!("{least:.2}x")
            }
            // A wide span has no meaningful middle.
            (Some(least), Some(most)) if least < most / 5.0 * 4.0 => format!("≥{least:.2}x"),
            (Some(least), Some(most)) => format!("~{:.2}x", (least + most) / 2.0),
            (Some(least), None) => format!("≥{least:.2}x"),
            (None, Some(most)) => format!("≤{most:.2}x"),
            (None, None) => "-".into(),
        }
    }

    fn sign(self) -> &'static str {
        match (self.told, self.most) {
            (Some(told), Some(most)) => match () {
                () if duration(self.least) == duration(most) => "",
                () if told == most => "≤",
                // The upper bound is far above.
                () if told == self.least && told < most / 5 * 4 => "≥",
                () => "~",
            },
            (Some(told), None) if told == self.least && !told.is_zero() => "≥",
            _ => "~",
        }
    }
}

impl Default for Length {
    fn default() -> Length {
        Length::ZERO
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.told {
            None => f.pad("?"),
            Some(told) => f.pad(&format!("{}{}", self.sign(), duration(told))),
        }
    }
}

impl From<Duration> for Length {
    fn from(time: Duration) -> Length {
        Length::exact(time)
    }
}

/// A length equals a time only if it is known exactly.
impl PartialEq<Duration> for Length {
    fn eq(&self, time: &Duration) -> bool {
        self.known() == Some(*time)
    }
}

impl Add for Length {
    type Output = Length;

    fn add(self, other: Length) -> Length {
        let most = self.most.zip(other.most).map(|(a, b)| a.saturating_add(b));
        let least = self.least.saturating_add(other.least);
        match (self.told, other.told, most) {
            (None, _, _) | (_, None, _) => Length { least, most, told: None },
            (Some(a), Some(b), None) => Length { least, most, told: Some(a.saturating_add(b)) },
            // If both show their lower bound, the sum does so, too.
            (Some(a), Some(b), most) => match a.saturating_add(b) == least {
                true => Length { least, most, told: Some(least) },
                false => Length::bounds(least, most),
            },
        }
    }
}

/// The rest of a length is never less than zero.
impl Sub for Length {
    type Output = Length;

    fn sub(self, other: Length) -> Length {
        let least = other.most.map_or(Duration::ZERO, |most| self.least.saturating_sub(most));
        let left = Length::bounds(least, self.most.map(|most| most.saturating_sub(other.least)));
        match self.told == Some(self.least) && (other.is_exact() || !self.is_exact()) {
            true => Length { told: Some(least).filter(|l| !l.is_zero()).or(left.told), ..left },
            false => left,
        }
    }
}

impl Sum for Length {
    fn sum<I: Iterator<Item = Length>>(lengths: I) -> Length {
        lengths.fold(Length::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::ms;

    #[test]
    fn the_text_has_a_sign_wherever_it_is_not_exact() {
        for (length, text) in [
            (Length::exact(ms(80)), "80.0 ms"),
            (Length::at_most(ms(80)), "≤80.0 ms"),
            (Length::at_least(ms(80)), "≥80.0 ms"),
            (Length::about(ms(80)), "~80.0 ms"),
            (Length::about(ms(0)), "~0 ns"),
            (Length::between(ms(4), ms(12)), "≤12.0 ms"),
            (Length::between(ms(100), ms(104)), "~102 ms"),
            // No reader could see the difference.
            (Length::between(ms(100_000), ms(100_004)), "100 s"),
            (Length::UNKNOWN, "?"),
            (Length::at_least(ms(0)), "?"),
            (Length::ZERO, "0 ns"),
        ] {
            assert_eq!(length.to_string(), text);
        }
        assert_eq!(format!("{:>10}|", Length::at_most(ms(80))), "  ≤80.0 ms|");
    }

    #[test]
    fn sums_and_differences_are_no_surer_than_their_parts() {
        let (exact, gap, unknown) =
            (Length::exact(ms(10)), Length::at_most(ms(4)), Length::UNKNOWN);
        assert_eq!(exact + exact, ms(20));
        assert_eq!(exact + gap, Length::between(ms(10), ms(14)));
        assert_eq!((exact + unknown).least(), ms(10));
        assert_eq!((exact + unknown).to_string(), "?");
        assert_eq!(exact - gap, Length::between(ms(6), ms(10)));
        assert_eq!(gap - exact, Length::ZERO);
        assert_eq!(exact - unknown, Length::at_most(ms(10)));
        let at_least = Length::between(ms(20), ms(900)).telling_any(ms(20));
        assert_eq!([at_least, at_least - gap].map(|l| l.to_string()), ["≥20.0 ms", "≥16.0 ms"]);
        let whole = Length::between(ms(286), ms(290)).telling(ms(286));
        let part = Length::between(ms(200), ms(295)).within(whole);
        assert_eq!(
            (part.to_string(), part.least(), part.most()),
            ("~286 ms".into(), ms(200), Some(ms(290)))
        );
        assert_eq!([exact, gap, gap].into_iter().sum::<Length>().most(), Some(ms(18)));
        // The whole allows each sum that the parts allow.
        for a in 0..=10 {
            assert!((exact + gap).allows(ms(10 + a)) == (a <= 4));
        }
    }

    #[test]
    fn a_ratio_of_bounds_is_a_bound() {
        let exact = |n| Length::exact(ms(n));
        assert_eq!(exact(100).times(exact(50)), "2.00x");
        assert_eq!(exact(100).times(exact(0)), "-");
        assert_eq!(exact(100).times(Length::at_most(ms(50))), "≥2.00x");
        assert_eq!(Length::at_most(ms(100)).times(exact(50)), "≤2.00x");
        assert_eq!(Length::at_most(ms(100)).times(Length::at_most(ms(50))), "-");
        assert_eq!(exact(100).times(Length::UNKNOWN), "-");
        let between = |a, b| Length::between(Duration::from_millis(a), Duration::from_millis(b));
        assert_eq!(between(100, 104).times(exact(50)), "~2.04x");
        assert_eq!(between(100, 4000).times(exact(50)), "≥2.00x");
    }

    #[test]
    fn a_time_is_equal_only_to_what_is_exact() {
        assert!(Length::exact(ms(3)) == ms(3));
        assert!(Length::at_most(ms(3)) != ms(3));
    }
}
