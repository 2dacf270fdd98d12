//! The decisions of a shutdown, apart from the mechanism: pure functions over plain values, tested
//! without threads. Rule numbers are those of `RULES.md`.

use super::options::HangPolicy;
use crate::graph::DeviceId;
use std::time::Duration;

/// Time after which a shutdown callback counts as blocking, so that another thread may take its
/// place (rule 3.4.4). A helper costs some ten microseconds to start: at a millisecond that cost is
/// negligible, and a shorter callback would have gained nothing from one.
pub(crate) const SLOW: Duration = Duration::from_millis(1);

/// Number by which the threads grow for each callback that was seen blocking.
const GROWTH: usize = 3;

/// Returns true if a shutdown is the plain serial loop (rule 3.4.5). With fewer than two callbacks
/// that may run elsewhere there is nothing to gain from counters, queues or threads.
pub(crate) fn shuts_down_serially(async_callbacks: usize) -> bool {
    async_callbacks < 2
}

/// Mean duration of callbacks from which on a helper pays: some times the cost of starting one.
const WORTH: Duration = Duration::from_micros(50);

/// Time after which a callback counts as slow if it computes, or seems to. Its thread may have been
/// preempted, or its virtual CPU taken away, and no helper would make that quicker.
const BUSY: Duration = Duration::from_millis(5);

/// Shortest time between two checks.
const SHORT: Duration = Duration::from_micros(250);

/// Start of the current check of a loop's pace: the loop was quick until then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    pub at: Duration,
    /// Number of callbacks that were over.
    pub over: usize,
}

/// Result of a check of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchStep {
    /// The loop goes well, or it is too early to say: check again after this time.
    Again(Duration),
    /// The loop takes long, and helpers could shorten it: begin to count.
    Count,
    /// The loop is over.
    Over,
}

/// Decides whether a shutdown should go on one by one, if it is so far, and has asynchronous
/// callbacks that were not begun (rule 3.4.4). `over` callbacks are over, and the one that runs has
/// been running for `running`. `blocked` returns true if the loop's thread sleeps just now; that
/// reads a file, so it is asked only if the loop seems slow.
pub(crate) fn look(
    now: Duration,
    over: usize,
    running: Duration,
    pace: &mut Pace,
    blocked: impl FnOnce() -> bool,
) -> WatchStep {
    if running >= SLOW {
        if running >= BUSY || blocked() {
            return WatchStep::Count;
        }
        // If it was only preempted, the pace says nothing.
        *pace = Pace { at: now, over };
        return WatchStep::Again(SLOW);
    }
    let again = WatchStep::Again(not_too_soon(SLOW - running));
    let (span, done) = (now.saturating_sub(pace.at), over.saturating_sub(pace.over));
    if span / u32::try_from(done).unwrap_or(u32::MAX).max(1) < WORTH {
        *pace = Pace { at: now, over };
        return again;
    }
    // The callbacks are slow on average, perhaps only for a moment.
    if span >= BUSY || (span >= 2 * SLOW && blocked()) { WatchStep::Count } else { again }
}

/// Returns the time to the next check.
pub(crate) fn not_too_soon(after: Duration) -> Duration {
    after.max(SHORT)
}

/// Cost of starting a helper, until it runs: its thread may have to be made.
const START: Duration = Duration::from_micros(100);

/// Greatest cost of the counting for each device.
const COUNTED: Duration = Duration::from_nanos(20);

/// Returns true if a loop of quick callbacks should end, so that helpers run some of them. `left`
/// callbacks are to come that take `mean` each, and `threads` could be in callbacks at once.
/// Helpers pay if they save twice the cost of counting all the `devices` and of a start.
pub(crate) fn helpers_pay(left: usize, mean: Duration, devices: usize, threads: usize) -> bool {
    let times =
        |each: Duration, n: usize| each.saturating_mul(u32::try_from(n).unwrap_or(u32::MAX));
    let left = times(mean, left);
    let saved = left - left / u32::try_from(threads).unwrap_or(u32::MAX).max(1);
    saved >= 2 * (times(COUNTED, devices) + START)
}

/// Returns how many threads `left` callbacks that take `mean` each would keep busy for as long as
/// starting one costs.
pub(crate) fn worth(left: usize, mean: Duration) -> usize {
    let left = mean.saturating_mul(u32::try_from(left).unwrap_or(u32::MAX));
    usize::try_from(left.as_nanos() / START.as_nanos()).unwrap_or(usize::MAX)
}

/// Time that a thread is to spend in callbacks that it took at once: after it, taking others costs
/// little.
const AT_ONCE: Duration = Duration::from_micros(50);

/// Number of callbacks from which on their mean says something: the loop checks it after one more,
/// the first.
const KNOWN: usize = 3;

/// Returns how many callbacks a thread takes at once if `backlog` are ready, `threads` take them,
/// and `known` of them took `mean` each. The number is so large that the lock is taken rarely, and
/// so small that all threads come to an end at the same time. It is one if they aren't quick or not
/// many.
pub(crate) fn at_once(backlog: usize, threads: usize, known: usize, mean: Duration) -> usize {
    if known < KNOWN {
        return 1;
    }
    let quick = AT_ONCE.as_nanos() / mean.as_nanos().max(1);
    let share = backlog / (2 * threads.max(1));
    usize::try_from(quick).unwrap_or(usize::MAX).min(share).max(1)
}

/// The load of a shutdown at one moment, for the decisions about helpers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Asynchronous devices that are ready and not taken.
    pub backlog: usize,
    /// Threads that are inside a callback, the caller included.
    pub running: usize,
    /// Threads that have been inside a callback for longer than [`SLOW`].
    pub blocked: usize,
    /// Greatest number of running threads at this moment.
    pub target: usize,
    /// Helpers that are there.
    pub helpers: usize,
    /// Helpers that were asked for and have not come.
    pub coming: usize,
    /// The most helpers that there may be.
    pub cap: usize,
    /// True if a thread without work checks the clock.
    pub watched: bool,
    /// True if a callback was seen blocking in this run.
    pub slow_seen: bool,
    /// Number of threads that the rest would keep busy for long enough.
    pub worth: usize,
}

/// Returns the number of helpers to start at this moment (rule 3.4.4). The backlog excludes the
/// asker's own share, so one device is left over exactly when two were ready, or one beside the
/// caller's synchronous work.
///
/// It asks for as many as the rest is worth, beyond the present ones. Without evidence of slow
/// callbacks, and beyond that, it asks for one at a time: each helper that comes asks for the next
/// one. So the caller pays for a single wake-up, and callbacks that take microseconds are gone
/// before a second helper is asked for.
pub(crate) fn helpers_to_ask(load: &Load) -> usize {
    let wanted = load.backlog.saturating_sub(load.coming);
    let below_cap = load.cap.saturating_sub(load.helpers + load.coming);
    let room = load.target.saturating_sub(load.running + load.coming).min(below_cap);
    if wanted == 0 || below_cap == 0 {
        0
    } else if room == 0 {
        // The new helper watches, and raises the target when callbacks turn out to block.
        usize::from(!load.watched && load.coming == 0)
    } else if load.slow_seen {
        wanted.min(room)
    } else {
        let worth = load.worth.saturating_sub(load.helpers + load.coming);
        wanted.min(room).min(worth).max(usize::from(load.coming == 0))
    }
}

/// Returns the new limit of threads inside callbacks, if work is ready and the old limit is
/// reached. It grows only when so many callbacks have been blocking that a CPU is free for another
/// one; never beyond the cap and the caller.
pub(crate) fn raised_target(load: &Load, cpus: usize) -> usize {
    let active = load.running.saturating_sub(load.blocked);
    if load.backlog == 0 || load.running < load.target || active >= cpus {
        return load.target;
    }
    let more = cpus.saturating_sub(active).max(load.blocked * GROWTH);
    (load.running + more).min(load.cap + 1).max(load.target)
}

/// The role of a helper that asks for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelperRole {
    /// Takes a device.
    Run,
    /// Waits until the running callbacks count as blocking, and looks again.
    Watch,
    /// Ends.
    Leave,
}

/// Returns the role of a helper that asks for work; see [`Load`].
pub(crate) fn helper_role(load: &Load) -> HelperRole {
    if load.backlog == 0 {
        HelperRole::Leave
    } else if load.running < load.target {
        HelperRole::Run
    } else if load.watched || load.helpers + load.coming > load.cap {
        HelperRole::Leave
    } else {
        HelperRole::Watch
    }
}

/// Returns true if the caller, which has no synchronous device ready, may run an asynchronous one.
///
/// A long callback must not hold the caller while a synchronous device becomes ready that didn't
/// have to wait for it. So the caller may help in three cases. No synchronous device is to come. Or
/// nothing else could release one meanwhile (`alone`: this is the only one ready, and nothing
/// runs). Or each synchronous device still to come needs this one to be finished anyway (`below`
/// has all bits of `to_come`; both are `None` if there are more such devices than bits).
pub(crate) fn caller_may_help(
    sync_to_come: usize,
    alone: bool,
    below: Option<u64>,
    to_come: Option<u64>,
) -> bool {
    if sync_to_come == 0 || alone {
        return true;
    }
    matches!((below, to_come), (Some(below), Some(to_come)) if below & to_come == to_come)
}

/// The action when only late callbacks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HangAction {
    /// The late callbacks are waited for.
    Wait,
    /// Devices that they hold up proceed without them.
    Skip,
    /// The rest is left undone.
    GiveUp,
}

/// Returns the action for late callbacks: none while others run or are ready. So a late one has
/// until everything that doesn't depend on it has ended.
pub(crate) fn hang(policy: HangPolicy, late: usize, running: usize, ready: usize) -> HangAction {
    if late == 0 || late < running || ready > 0 {
        return HangAction::Wait;
    }
    match policy {
        HangPolicy::WaitOn => HangAction::Wait,
        HangPolicy::Skip => HangAction::Skip,
        HangPolicy::GiveUp => HangAction::GiveUp,
    }
}

/// Returns true if the rest is left undone once the whole shutdown is late. A skip would be of no
/// use: the time is up for all later devices, too.
pub(crate) fn gives_up_when_all_is_late(policy: HangPolicy) -> bool {
    policy != HangPolicy::WaitOn
}

/// Returns the expected time by device, from its callback to the end of the longest chain of those
/// that wait for it (rule 3.4.6). `order` has what a device needs before it.
pub(crate) fn paths<'g>(
    order: &[DeviceId],
    needs: impl Fn(DeviceId) -> &'g [DeviceId],
    expected: &[u64],
) -> Vec<u64> {
    let mut paths = vec![0u64; expected.len()];
    for &id in order {
        let behind = needs(id).iter().map(|n| paths[n.index()]).max().unwrap_or(0);
        paths[id.index()] = behind.saturating_add(expected[id.index()]);
    }
    paths
}

/// Returns true if the counting begins at once: at least two asynchronous callbacks are expected to
/// be slow, so there is nothing to find out.
pub(crate) fn counts_at_once(slow_asyncs: usize) -> bool {
    slow_asyncs >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_two_asynchronous_callbacks_make_a_serial_loop() {
        assert!(shuts_down_serially(0) && shuts_down_serially(1) && !shuts_down_serially(2));
    }

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// Makes several checks; each has its time, how many were over, and how long one had been
    /// running.
    fn looks<const N: usize>(blocked: bool, looks: [(u64, usize, u64); N]) -> [WatchStep; N] {
        let mut pace = Pace::default();
        looks.map(|(at, over, running)| look(US(at), over, US(running), &mut pace, || blocked))
    }

    #[test]
    fn a_loop_of_quick_callbacks_stays_one() {
        let quick = looks(true, [(1_000, 300, 3), (1_997, 600, 3), (2_100, 610, 950)]);
        assert_eq!(
            quick,
            [WatchStep::Again(US(997)), WatchStep::Again(US(997)), WatchStep::Again(SHORT)]
        );
    }

    #[test]
    fn a_callback_that_blocks_ends_the_loop_wherever_it_stands() {
        assert_eq!(looks(true, [(1_000, 0, 1_000)]), [WatchStep::Count]);
        assert_eq!(
            looks(true, [(49_000, 80_000, 3), (50_000, 80_000, 1_003)])[1],
            WatchStep::Count
        );
    }

    #[test]
    fn a_callback_that_computes_or_was_preempted_ends_it_only_after_some_time() {
        let busy = looks(false, [(1_000, 9, 1_000), (2_000, 9, 2_000), (5_000, 9, 5_000)]);
        assert_eq!(busy, [WatchStep::Again(SLOW), WatchStep::Again(SLOW), WatchStep::Count]);
        // The loop was preempted: then it continues as before.
        let preempted = looks(false, [(4_000, 9, 4_000), (5_000, 130, 3), (5_997, 250, 3)]);
        assert_eq!(
            preempted,
            [WatchStep::Again(SLOW), WatchStep::Again(US(997)), WatchStep::Again(US(997))]
        );
    }

    #[test]
    fn callbacks_that_are_slow_on_average_end_the_loop() {
        let looked = [(1_000, 10, 90), (2_000, 20, 90), (3_000, 30, 90), (5_000, 50, 90)];
        let again = WatchStep::Again(US(910));
        assert_eq!(looks(true, looked)[..2], [again, WatchStep::Count], "they block");
        assert_eq!(looks(false, looked), [again, again, again, WatchStep::Count], "they compute");
        assert_eq!(looks(true, [(1_000, 10, 90), (2_000, 300, 9)])[1], WatchStep::Again(US(991)));
    }

    #[test]
    fn nothing_is_done_about_a_late_callback_while_others_go_on_or_are_ready() {
        for policy in [HangPolicy::WaitOn, HangPolicy::Skip, HangPolicy::GiveUp] {
            assert_eq!(hang(policy, 1, 2, 0), HangAction::Wait);
            assert_eq!(hang(policy, 1, 1, 3), HangAction::Wait);
            assert_eq!(hang(policy, 0, 0, 0), HangAction::Wait);
        }
        assert_eq!(hang(HangPolicy::WaitOn, 2, 2, 0), HangAction::Wait);
        assert_eq!(hang(HangPolicy::Skip, 2, 2, 0), HangAction::Skip);
        assert_eq!(hang(HangPolicy::GiveUp, 2, 2, 0), HangAction::GiveUp);
        assert!(!gives_up_when_all_is_late(HangPolicy::WaitOn));
    }

    #[test]
    fn a_path_is_as_long_as_the_longest_chain_behind_a_device() {
        // 0 <- 1 <- 3, 0 <- 2 <- 3
        let needs: [&[DeviceId]; 4] =
            [&[], &[DeviceId(0)], &[DeviceId(0)], &[DeviceId(1), DeviceId(2)]];
        let order = [0, 1, 2, 3].map(DeviceId);
        let paths = paths(&order, |id| needs[id.index()], &[5, 1, 7, 2]);
        assert_eq!(paths, [5, 6, 12, 14]);
    }

    fn load(backlog: usize) -> Load {
        Load { backlog, target: 4, cap: 16, ..Load::default() }
    }

    #[test]
    fn one_helper_is_asked_for_at_a_time_until_callbacks_turn_out_slow() {
        assert_eq!(helpers_to_ask(&load(0)), 0);
        assert_eq!(helpers_to_ask(&load(30)), 1);
        assert_eq!(helpers_to_ask(&Load { coming: 1, ..load(30) }), 0);
        assert_eq!(helpers_to_ask(&Load { slow_seen: true, running: 1, ..load(30) }), 3);
        assert_eq!(helpers_to_ask(&Load { slow_seen: true, target: 99, ..load(30) }), 16);
        assert_eq!(helpers_to_ask(&Load { slow_seen: true, target: 99, ..load(2) }), 2);
    }

    #[test]
    fn as_many_helpers_are_asked_for_at_once_as_what_is_left_is_worth() {
        let much = Load { worth: 9, target: 16, running: 1, ..load(30) };
        assert_eq!(helpers_to_ask(&much), 9);
        assert_eq!(helpers_to_ask(&Load { target: 4, ..much }), 3);
        assert_eq!(helpers_to_ask(&Load { helpers: 4, coming: 3, ..much }), 2);
        assert_eq!(helpers_to_ask(&Load { backlog: 2, ..much }), 2);
        assert_eq!(helpers_to_ask(&Load { coming: 9, ..much }), 0);
        assert_eq!((worth(50, US(8)), worth(500, US(8)), worth(0, US(8))), (4, 40, 0));
    }

    #[test]
    fn quick_callbacks_are_taken_several_at_once_where_there_are_many_and_they_are_known() {
        assert_eq!(at_once(5_000, 16, 100, US(1)), 50);
        assert_eq!(at_once(5_000, 16, 100, US(10)), 5);
        assert_eq!(at_once(5_000, 16, 100, US(60)), 1, "no quick ones");
        assert_eq!(at_once(320, 16, 100, US(1)), 10);
        assert_eq!(at_once(31, 16, 100, US(1)), 1, "each thread gets one");
        assert_eq!(at_once(5_000, 16, 2, US(1)), 1, "nothing is known");
    }

    #[test]
    fn with_all_places_taken_one_helper_is_asked_to_watch() {
        let full = Load { running: 4, ..load(3) };
        assert_eq!(helpers_to_ask(&full), 1);
        assert_eq!(helpers_to_ask(&Load { watched: true, ..full }), 0);
        assert_eq!(helper_role(&Load { helpers: 1, ..full }), HelperRole::Watch);
        assert_eq!(helper_role(&Load { helpers: 1, watched: true, ..full }), HelperRole::Leave);
    }

    #[test]
    fn at_the_cap_nobody_is_asked_and_nobody_watches() {
        let at_cap = Load { running: 17, target: 17, helpers: 16, ..load(5) };
        assert_eq!(helpers_to_ask(&at_cap), 0);
        assert_eq!(helper_role(&Load { helpers: 17, ..at_cap }), HelperRole::Leave);
    }

    #[test]
    fn the_target_grows_only_when_callbacks_block_and_never_beyond_the_cap() {
        let full = Load { running: 4, ..load(30) };
        assert_eq!(raised_target(&full, 4), 4);
        assert_eq!(raised_target(&Load { blocked: 4, ..full }, 4), 16);
        assert_eq!(raised_target(&Load { blocked: 1, ..full }, 4), 7);
        assert_eq!(raised_target(&Load { blocked: 12, running: 12, target: 12, ..full }, 4), 17);
        let busy = Load { blocked: 4, running: 12, target: 12, ..full };
        assert_eq!(raised_target(&busy, 4), 12, "eight that don't block keep four CPUs busy");
        assert_eq!(raised_target(&Load { blocked: 4, backlog: 0, ..full }, 4), 4);
    }

    #[test]
    fn the_caller_helps_only_where_no_synchronous_device_can_be_kept_waiting() {
        assert!(caller_may_help(0, false, None, None));
        assert!(caller_may_help(3, true, None, None));
        assert!(!caller_may_help(3, false, None, None));
        assert!(caller_may_help(2, false, Some(0b111), Some(0b101)));
        assert!(!caller_may_help(2, false, Some(0b110), Some(0b101)));
    }
}
