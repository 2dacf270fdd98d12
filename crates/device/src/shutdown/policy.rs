//! The decisions of a shutdown, apart from the mechanism: pure functions over plain values, tested
//! without threads. Rule numbers are those of `spec/mechanisms.md`.

use std::time::Duration;

/// How long a shutdown callback runs before it counts as blocking, so that another thread may take
/// its place (rule 3.4.4). A helper costs some ten microseconds to start: at a millisecond its cost
/// has vanished, and a callback that is done sooner gained nothing from one.
pub(crate) const SLOW: Duration = Duration::from_millis(1);

/// By how much the number of threads grows for each callback that was seen blocking.
const GROWTH: usize = 3;

/// Whether a shutdown is the plain serial loop (rule 3.4.5): with fewer than two callbacks that may
/// run elsewhere there is nothing to gain from counters, queues or threads.
pub(crate) fn shuts_down_serially(async_callbacks: usize) -> bool {
    async_callbacks < 2
}

/// How long callbacks have to take on average for a helper to pay: some times what it costs to
/// start one.
const WORTH: Duration = Duration::from_micros(50);

/// Whether a shutdown that is one by one so far, and has asynchronous callbacks that were not begun,
/// should go on so (rule 3.4.4): for how long, before somebody looks again; `None`: it should not.
/// `running` is how long the callback that runs has been running; `over` callbacks are over and took
/// `busy` together.
pub(crate) fn look_again_after(
    running: Option<Duration>,
    busy: Duration,
    over: usize,
) -> Option<Duration> {
    let running = running.unwrap_or(Duration::ZERO);
    let over = u32::try_from(over).unwrap_or(u32::MAX).max(1);
    // None was slow, but they are not that quick, and there have been some.
    let worth = busy >= SLOW && busy / over >= WORTH;
    let left = SLOW.checked_sub(running).filter(|left| !left.is_zero());
    left.filter(|_| !worth)
}

/// What a shutdown looks like at one moment, to those who decide about helpers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Asynchronous devices that are ready and that nobody has taken.
    pub backlog: usize,
    /// Threads that are inside a callback, the caller included.
    pub running: usize,
    /// Those of them that have been inside it for longer than [`SLOW`].
    pub blocked: usize,
    /// How many may be at most, for now.
    pub target: usize,
    /// Helpers that are there.
    pub helpers: usize,
    /// Helpers that were asked for and have not come.
    pub coming: usize,
    /// The most helpers that there may be.
    pub cap: usize,
    /// Somebody without work looks at the clock.
    pub watched: bool,
    /// A callback was seen blocking in this run.
    pub slow_seen: bool,
}

/// How many helpers to ask for now (rule 3.4.4). The backlog is what is left after the asker took
/// its own share, so one device is left over exactly when two were ready, or one beside the
/// caller's synchronous work.
///
/// Without evidence of slow callbacks it is one at a time: each helper that comes asks for the next
/// one, so the caller pays for a single wake-up, and callbacks that take microseconds are gone
/// before a second helper is asked for.
pub(crate) fn helpers_to_ask(load: &Load) -> usize {
    let wanted = load.backlog.saturating_sub(load.coming);
    let below_cap = load.cap.saturating_sub(load.helpers + load.coming);
    let room = load.target.saturating_sub(load.running + load.coming).min(below_cap);
    if wanted == 0 || below_cap == 0 {
        0
    } else if room == 0 {
        // One that watches, and raises the target when callbacks turn out to block.
        usize::from(!load.watched && load.coming == 0)
    } else if load.slow_seen {
        wanted.min(room)
    } else {
        usize::from(load.coming == 0)
    }
}

/// The new most for threads inside callbacks, where work is ready and the old most is reached.
/// Grows only when so many callbacks have been blocking that a CPU is free for another one; never
/// beyond the cap and the caller.
pub(crate) fn raised_target(load: &Load, cpus: usize) -> usize {
    let active = load.running.saturating_sub(load.blocked);
    if load.backlog == 0 || load.running < load.target || active >= cpus {
        return load.target;
    }
    let more = cpus.saturating_sub(active).max(load.blocked * GROWTH);
    (load.running + more).min(load.cap + 1).max(load.target)
}

/// What a helper that asks for work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelperRole {
    /// Takes a device.
    Run,
    /// Waits until the callbacks that run count as blocking, and looks again.
    Watch,
    /// Goes home.
    Leave,
}

/// What a helper that asks for work does; see [`Load`].
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

/// Whether the caller, which has no synchronous device ready, may run an asynchronous one.
///
/// It must not be held by a long callback while a synchronous device becomes ready that didn't have
/// to wait for it. So: where no synchronous device is to come; or where nothing else could release
/// one meanwhile (`alone`: this is the only one ready, and nothing runs); or where each synchronous
/// device still to come needs this one to be finished anyway (`below` has all bits of `to_come`;
/// both are `None` where there are more such devices than bits).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_two_asynchronous_callbacks_make_a_serial_loop() {
        assert!(shuts_down_serially(0) && shuts_down_serially(1) && !shuts_down_serially(2));
    }

    #[test]
    fn a_loop_of_quick_callbacks_stays_one_and_a_slow_callback_or_slow_ones_on_average_end_it() {
        let us = Duration::from_micros;
        assert_eq!(look_again_after(None, us(0), 0), Some(SLOW));
        assert_eq!(look_again_after(Some(us(400)), us(0), 0), Some(us(600)));
        assert_eq!(look_again_after(Some(SLOW), us(0), 0), None, "the first one is slow");
        assert_eq!(look_again_after(Some(SLOW), us(90_000), 80_000), None, "a late one is slow");
        assert_eq!(look_again_after(Some(us(3)), us(9_000), 9_000), Some(us(997)));
        assert_eq!(look_again_after(Some(us(3)), us(2_000), 20), None, "100 us each");
        assert_eq!(look_again_after(Some(us(80)), us(800), 9), Some(us(920)), "it is early yet");
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
