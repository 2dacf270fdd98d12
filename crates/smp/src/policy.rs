//! Decisions of the call targets, as functions of plain values.

use std::time::Duration;

/// How a call reaches its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Through the target's queue.
    Queue,
    /// At once, in the calling thread, which is the target.
    Inline,
}

/// Which delivery a call takes.
///
/// In place only where the caller *is* the target, in one of its handlers, and wants the value:
/// through the queue it would wait for itself. That the calling thread happens to be on the right
/// CPU isn't enough: it could be moved, and would run beside the target's handlers, which never
/// overlap. A call without waiting is always queued, so that a handler that calls its own CPU again
/// returns first.
pub(crate) fn delivery(caller_is_target: bool, waited_for: bool) -> Delivery {
    if caller_is_target && waited_for { Delivery::Inline } else { Delivery::Queue }
}

/// How many calls that nobody waits for are run before the queue is looked at again.
///
/// One: so a call that somebody waits for is behind one such call at most, and the look costs a
/// load.
pub(crate) const PLAIN_CALLS_PER_STEP: usize = 1;

/// One call in so many is timed to the nanosecond, and stands for the others in the histograms.
///
/// A precise clock takes 25 to 50 ns to read, three times a call: as much as a call between two cores
/// that both spin. One in 16 is below 5 ns a call.
pub(crate) const SAMPLED: u32 = 16;

/// How many calls a call stands for in the histograms.
///
/// One that finds its target asleep costs a wake-up anyhow, so it is timed and stands for itself. Of the
/// others it is every sixteenth use of a cell.
pub(crate) fn weight(target_sleeps: bool, use_of_cell: u32) -> u32 {
    if target_sleeps {
        1
    } else if use_of_cell % SAMPLED == 0 {
        SAMPLED
    } else {
        0
    }
}

/// What took so long is counted whether it was sampled or not: some ticks of the coarse clock.
const LONG: Duration = Duration::from_millis(32);

/// How often a time is counted, of a call of this weight. So the rare long ones are all there, and each
/// counts once.
pub(crate) fn measured(took: Duration, weight: u32) -> u32 {
    if took >= LONG { 1 } else { weight }
}

/// A wait that takes longer than this is reported, where nobody says else: as the kernel's.
pub(crate) const STALL_AFTER: Duration = Duration::from_secs(5);

/// After how long a thread that waits looks for the first time whether its target sleeps: the thread that was to wake it
/// may have been preempted before it did. So long that hardly any wait gets there.
pub(crate) fn first_look(limit: Option<Duration>) -> Duration {
    const FIRST_LOOK: Duration = Duration::from_millis(10);
    limit.map_or(FIRST_LOOK, |limit| limit.min(FIRST_LOOK))
}

/// After how long a wait is reported that has been `told` of so often: at the limit, at twice that, at four
/// times that.
pub(crate) fn next_report(limit: Duration, told: u32) -> Duration {
    // A limit of nothing would have no end of reports.
    let limit = limit.max(Duration::from_millis(1));
    limit.saturating_mul(1_u32.checked_shl(told).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_target_itself_runs_in_place_and_only_what_it_waits_for() {
        assert_eq!(delivery(true, true), Delivery::Inline);
        assert_eq!(delivery(true, false), Delivery::Queue);
        assert_eq!(delivery(false, true), Delivery::Queue);
        assert_eq!(delivery(false, false), Delivery::Queue);
    }

    #[test]
    fn one_call_in_sixteen_is_timed_and_each_that_wakes_or_takes_long() {
        let hot: u32 = (0..1600).map(|use_of_cell| weight(false, use_of_cell)).sum();
        assert_eq!(hot, 1600, "those that are timed stand for all");
        assert_eq!((0..1600).filter(|&n| weight(false, n) > 0).count(), 100);
        assert_eq!(weight(true, 1), 1);
        assert_eq!(measured(LONG, 0), 1);
        assert_eq!(measured(LONG, SAMPLED), 1);
        assert_eq!(measured(LONG / 2, 0), 0);
        assert_eq!(measured(LONG / 2, SAMPLED), SAMPLED);
    }

    #[test]
    fn a_late_wait_is_reported_at_the_limit_and_then_at_doubling_intervals() {
        let limit = Duration::from_secs(5);
        let times: Vec<u64> = (0..4).map(|told| next_report(limit, told).as_secs()).collect();
        assert_eq!(times, [5, 10, 20, 40]);
        assert!(next_report(limit, 31) <= next_report(limit, 32));
        assert!(next_report(limit, u32::MAX) > Duration::from_secs(1 << 32));
        assert!(next_report(Duration::ZERO, 0) > Duration::ZERO);
    }
}
