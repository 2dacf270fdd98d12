//! When mirrors are checked that have a schedule. But for the schedule itself pure: over plain
//! numbers, in seconds since 1970.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use corewise::sync::Mutex;

/// A check comes up to this share of its period early, so that mirrors whose last checks ended
/// together drift apart, also those of several servers.
const EARLY: f64 = 1.0 / 8.0;
/// A check that couldn't begin for as long behind its period is overdue.
const LATE: f64 = 1.0 / 8.0;

/// When the next check of `mirror` is due, of which there was none since then: at most `every`
/// later.
pub(crate) fn due(mirror: &str, since: f64, every: Duration) -> f64 {
    let mut hasher = DefaultHasher::new();
    (mirror, since.to_bits()).hash(&mut hasher);
    let share = hasher.finish() as f64 / u64::MAX as f64;
    since + every.as_secs_f64() * (1.0 - EARLY * share)
}

/// Whether a check should long have begun, where it doesn't run.
pub(crate) fn is_overdue(since: f64, every: f64, now: f64) -> bool {
    now > since + every * (1.0 + LATE)
}

/// How often a mirror is checked by itself.
#[derive(Debug, Default)]
pub(crate) struct CheckSchedule {
    /// L: is the lock, held for a moment, a leaf; guards the time after which it is. `None`: it
    /// isn't.
    every: Mutex<Option<Duration>>,
}

impl CheckSchedule {
    pub(crate) fn set(&self, every: Option<Duration>) {
        *self.every.lock() = every;
    }

    pub(crate) fn every(&self) -> Option<Duration> {
        *self.every.lock()
    }
}

/// A mirror that has a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheduled {
    pub(crate) since: f64,
    pub(crate) due: f64,
    /// All its legs are in sync: else there is less to compare.
    pub(crate) is_whole: bool,
}

/// Which of these is to be checked now: the one that is due for longest. The caller asks only while
/// no mirror is being checked.
pub(crate) fn next(mirrors: &[Scheduled], now: f64) -> Option<usize> {
    // A clock that was set back: nobody knows how long ago the last check was.
    let is_due = |one: &Scheduled| one.is_whole && (one.due <= now || one.since > now + 60.0);
    let due = mirrors.iter().enumerate().filter(|(_, one)| is_due(one));
    due.min_by(|(_, one), (_, other)| one.due.total_cmp(&other.due)).map(|(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: f64 = 86_400.0;
    const WEEK: Duration = Duration::from_secs(7 * 86_400);

    #[test]
    fn checks_of_mirrors_that_were_checked_together_are_due_apart_and_none_is_late() {
        let now = 1_800_000_000.0;
        let due: Vec<f64> = (0..1000).map(|n| due(&format!("m{n}"), now, WEEK) - now).collect();
        assert!(due.iter().all(|due| (7.0 * DAY * 7.0 / 8.0..=7.0 * DAY).contains(due)));
        // A tenth of them each tenth of the time, roughly.
        for tenth in 0..10 {
            let begin = 7.0 * DAY * (7.0 / 8.0 + f64::from(tenth) / 80.0);
            let there =
                due.iter().filter(|d| (begin..begin + 7.0 * DAY / 80.0).contains(d)).count();
            assert!((60..140).contains(&there), "{there} in tenth {tenth}");
        }
        assert_eq!(super::due("m", now, WEEK), super::due("m", now, WEEK), "also after a restart");
    }

    #[test]
    fn the_one_that_is_due_for_longest_comes_first_and_one_that_lacks_a_leg_waits() {
        let at = |due, is_whole| Scheduled { since: 0.0, due, is_whole };
        assert_eq!(next(&[at(10.0, true), at(5.0, true), at(7.0, true)], 20.0), Some(1));
        assert_eq!(next(&[at(10.0, true), at(5.0, false), at(7.0, true)], 20.0), Some(2));
        assert_eq!(next(&[at(21.0, true), at(5.0, false)], 20.0), None);
        assert_eq!(next(&[], 20.0), None);
        let ahead = Scheduled { since: 1e9, due: 2e9, is_whole: true };
        assert_eq!(next(&[ahead], 20.0), Some(0), "the clock was set back");
    }

    #[test]
    fn a_check_is_overdue_when_its_period_and_an_eighth_of_it_have_passed() {
        assert!(!is_overdue(100.0, 80.0, 189.0));
        assert!(is_overdue(100.0, 80.0, 191.0));
    }
}
