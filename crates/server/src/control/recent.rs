//! The counts of a disk, or of an export, for the last minute: the counters now, less those of a
//! minute ago. A few earlier states of the counters are kept for that, so no request pays for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::disks::{OpCounts, Ops, Times};

/// Time between two states that are kept.
const STEP: Duration = Duration::from_secs(5);
/// Time span of the states.
const WINDOW: Duration = Duration::from_secs(60);

/// The counts of one operation in the last minute. Times are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastMinute {
    /// Length of that time. For a disk that came up just now it is less than a minute, else up to a
    /// few seconds more.
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) bytes: u64,
    pub(crate) p50_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
    pub(crate) p999_seconds: Option<f64>,
    /// Longest time, exact to an eighth.
    pub(crate) longest_seconds: Option<f64>,
}

/// The earlier states of counters that only rise.
#[derive(Debug)]
pub(crate) struct Recent {
    /// States, the oldest first: one that is as old as the window, and all later ones. Equal
    /// states in a row share their counters, since most disks are at rest.
    states: VecDeque<(Instant, Arc<Ops>)>,
}

impl Recent {
    /// Creates a history that begins with nothing counted.
    pub(crate) fn new(now: Instant) -> Recent {
        Recent { states: VecDeque::from([(now, Arc::default())]) }
    }

    /// Returns true if it is time for another state.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let last = self.states.back().map(|(at, _)| *at);
        last.is_none_or(|last| now.saturating_duration_since(last) >= STEP)
    }

    /// Keeps the present counters, if a state is due.
    pub(crate) fn note(&mut self, now: Instant, ops: &Ops) {
        // The counters began anew.
        if self.states.back().is_some_and(|(_, last)| last.is_beyond(ops)) {
            *self = Recent::new(now);
        }
        if self.is_due(now) {
            let last = self.states.back().map(|(_, last)| last).filter(|last| ***last == *ops);
            let ops = last.map_or_else(|| Arc::new(ops.clone()), Arc::clone);
            self.states.push_back((now, ops));
        }
        // The second state is old enough by itself.
        let is_old = |at: Instant| now.saturating_duration_since(at) >= WINDOW;
        while self.states.get(1).is_some_and(|(at, _)| is_old(*at)) {
            self.states.pop_front();
        }
    }

    /// Fills in the counts of the last minute for each operation. `ops` holds the counters as they
    /// are now.
    pub(crate) fn fill(&self, now: Instant, ops: &mut Ops) {
        let Some((at, before)) = self.states.front() else { return };
        let seconds = now.saturating_duration_since(*at).as_secs_f64();
        let all = before.all();
        for ((_, before), now) in all.into_iter().zip(ops.all_mut()) {
            if now.requests != 0 {
                now.last_minute = Some(LastMinute::between(before, now, seconds));
            }
        }
    }
}

impl LastMinute {
    fn between(before: &OpCounts, now: &OpCounts, seconds: f64) -> LastMinute {
        let mut times = Vec::new();
        added(&mut times, &before.latency, &now.latency);
        // No request took longer than the longest ever, which is known exactly. A bucket's end may
        // be beyond.
        let longest = now.latency.longest_seconds.unwrap_or(f64::INFINITY);
        let share = |share| quantile(&times, share).map(|seconds| seconds.min(longest));
        LastMinute {
            seconds,
            requests: now.requests.saturating_sub(before.requests),
            errors: now.errors.saturating_sub(before.errors),
            bytes: now.bytes.saturating_sub(before.bytes),
            p50_seconds: share(0.5),
            p99_seconds: share(0.99),
            p999_seconds: share(0.999),
            longest_seconds: share(1.0),
        }
    }
}

/// Adds the difference of two histograms to `sum`.
pub(super) fn added(sum: &mut Vec<(f64, u64)>, before: &Times, now: &Times) {
    let mut earlier = before.histogram.iter().peekable();
    for &(end, count) in &now.histogram {
        while earlier.next_if(|(other, _)| *other < end).is_some() {}
        let had = earlier.next_if(|(other, _)| *other == end).map_or(0, |(_, had)| *had);
        match count.saturating_sub(had) {
            0 => {}
            more => sum.push((end, more)),
        }
    }
}

/// Returns the time in seconds that `share` of these times don't exceed. They must be sorted.
pub(super) fn quantile(times: &[(f64, u64)], share: f64) -> Option<f64> {
    let all: u64 = times.iter().map(|(_, count)| count).sum();
    let rank = ((all as f64 * share).ceil() as u64).max(1);
    let mut below = 0;
    let (end, _) = times.iter().find(|(_, count)| {
        below += count;
        below >= rank
    })?;
    Some(*end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(requests: u64, errors: u64, histogram: &[(f64, u64)]) -> Ops {
        let latency = Times { histogram: histogram.to_vec(), ..Times::default() };
        let reads =
            OpCounts { requests, errors, bytes: 512 * requests, latency, ..OpCounts::default() };
        Ops { reads, ..Ops::default() }
    }

    /// Returns the counts of reads in the last minute.
    fn last_minute(recent: &Recent, now: Instant, ops: &Ops) -> LastMinute {
        let mut ops = ops.clone();
        recent.fill(now, &mut ops);
        assert_eq!(ops.writes.last_minute, None, "nothing was ever written");
        ops.reads.last_minute.unwrap()
    }

    #[test]
    fn the_last_minute_has_the_requests_of_a_minute_and_no_earlier_ones() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut recent = Recent::new(began);
        // There is one request a second: of a millisecond in the first two minutes, and of ten
        // later.
        let ops = |seconds: u64| {
            let slow = seconds.saturating_sub(120);
            reads(seconds, slow / 2, &[(0.001, seconds - slow), (0.01, slow)])
        };
        for second in 1..=30 {
            recent.note(at(second), &ops(second));
        }
        let young = last_minute(&recent, at(30), &ops(30));
        assert_eq!((young.seconds, young.requests), (30.0, 30), "all that it ever did");
        for second in 31..=150 {
            recent.note(at(second), &ops(second));
        }
        let now = last_minute(&recent, at(150), &ops(150));
        assert!((60.0..66.0).contains(&now.seconds), "{now:?}");
        assert_eq!((now.requests as f64, now.errors), (now.seconds, 15));
        assert_eq!((now.p50_seconds, now.p99_seconds), (Some(0.001), Some(0.01)));
        for second in 151..=240 {
            recent.note(at(second), &ops(second));
        }
        let mut last = ops(240);
        last.reads.latency.longest_seconds = Some(0.009_5);
        let now = last_minute(&recent, at(240), &last);
        assert_eq!((now.p50_seconds, now.longest_seconds), (Some(0.009_5), Some(0.009_5)));
        assert!(recent.states.len() <= 14, "{}", recent.states.len());
    }

    #[test]
    fn a_minute_in_which_nothing_happened_has_no_times() {
        let began = Instant::now();
        let mut recent = Recent::new(began);
        let ops = reads(7, 0, &[(0.5, 7)]);
        for second in 1..=200 {
            recent.note(began + Duration::from_secs(second), &ops);
        }
        let now = last_minute(&recent, began + Duration::from_secs(200), &ops);
        assert_eq!((now.requests, now.p50_seconds, now.longest_seconds), (0, None, None));
        let first = &recent.states[0].1;
        assert!(recent.states.iter().all(|(_, other)| Arc::ptr_eq(first, other)), "one copy");
    }

    #[test]
    fn a_gap_between_two_looks_makes_the_minute_longer_and_says_so() {
        let began = Instant::now();
        let mut recent = Recent::new(began);
        recent.note(began + Duration::from_secs(10), &reads(10, 0, &[(0.1, 10)]));
        let late = began + Duration::from_secs(300);
        recent.note(late, &reads(20, 0, &[(0.1, 20)]));
        let now = last_minute(&recent, late, &reads(20, 0, &[(0.1, 20)]));
        assert_eq!((now.seconds, now.requests), (290.0, 10));
    }

    #[test]
    fn counters_that_begin_anew_are_no_minute_of_the_old_ones() {
        let began = Instant::now();
        let mut recent = Recent::new(began);
        recent.note(began + Duration::from_secs(10), &reads(1_000, 0, &[(0.1, 1_000)]));
        let now = began + Duration::from_secs(20);
        recent.note(now, &reads(5, 0, &[(0.1, 5)]));
        let later = now + Duration::from_secs(1);
        assert_eq!(last_minute(&recent, later, &reads(8, 0, &[(0.1, 8)])).requests, 8);
    }
}
