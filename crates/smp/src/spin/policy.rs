//! Who spins before it sleeps, and for how long, as functions of plain values.

use std::time::Duration;

use corewise_sync::time::Stamp;

/// How often a waiter looks before it sleeps: for less than a wake-up costs. Where it is on the CPU that it
/// waits for, it only keeps that from answering.
pub(crate) fn waiter_looks(on_target: bool) -> u32 {
    match on_target {
        _ if cfg!(loom) => 1,
        true => 1,
        false => WAITER_LOOKS,
    }
}

/// Some microseconds.
const WAITER_LOOKS: u32 = 128;

/// How long a target that has nothing to do spins that has reason to: until a caller that was woken by its
/// answer has called again.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// A sleep that was over so soon would have been no sleep for one who spins: the time until it was woken, and as
/// much again until it ran.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// How many short sleeps in a row are reason enough to spin, at first and at most.
const PROOF: u32 = 2;
const MOST_PROOF: u32 = 256;
/// How long a target stays awake without a sleep, and how long it then spins no more. Nothing of a lower
/// priority runs on its CPU while it is awake, and it may have a high one: so half of the time at most, and
/// never for long.
const BURST: Duration = Duration::from_micros(150);
const PAUSE: Duration = BURST;

/// Whether targets spin at all: not where a CPU is only a name, and not where there is no other one to call from.
pub(crate) fn may_spin(synthetic: bool, cpus: usize) -> bool {
    !synthetic && cpus > 1
}

/// Whether a target spins before it sleeps: only while calls come in faster than it could be woken, and within
/// its budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpinHabit {
    /// Short sleeps in a row.
    short: u32,
    /// So many are wanted.
    wanted: u32,
    /// Until when it spins, from the sleep before; `None`: not at all.
    until: Option<Stamp>,
    /// Before that it doesn't spin again.
    not_before: Stamp,
}

impl SpinHabit {
    pub(crate) fn new() -> Self {
        let not_before = Stamp::from_nanos(0);
        SpinHabit { short: 0, wanted: PROOF, until: None, not_before }
    }

    /// Until when it may spin now, if at all.
    pub(crate) fn until(&self) -> Option<Stamp> {
        self.until
    }

    /// It was woken, at last, by a call from its own CPU (`from_here`) or another one. A caller on its own
    /// CPU can't call while it spins there.
    pub(crate) fn woken(&mut self, slept: Duration, from_here: bool, now: Stamp) {
        let short = slept <= SHORT_SLEEP && !from_here;
        self.short = if short { self.short + 1 } else { 0 };
        let spins = self.short >= self.wanted && now >= self.not_before;
        self.until = spins.then(|| now.plus(BURST));
    }

    /// A call came while it spun.
    pub(crate) fn well(&mut self) {
        self.short = PROOF;
        self.wanted = PROOF;
    }

    /// No call came while it spun.
    pub(crate) fn in_vain(&mut self) {
        self.short = 0;
        self.wanted = (self.wanted * 2).min(MOST_PROOF);
        self.until = None;
    }

    /// Its time is over.
    pub(crate) fn spent(&mut self, now: Stamp) {
        self.until = None;
        self.not_before = now.plus(PAUSE);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_target_spins_after_short_sleeps_and_no_more_where_that_was_in_vain() {
        let (mut habit, now) = (SpinHabit::new(), Stamp::from_nanos(1_000_000));
        let short = SHORT_SLEEP / 2;
        habit.woken(short, false, now);
        assert!(habit.until().is_none(), "one may be chance");
        habit.woken(short, false, now);
        assert_eq!(habit.until(), Some(now.plus(BURST)));
        habit.in_vain();
        assert!(habit.until().is_none());
        for _ in 0..3 {
            habit.woken(short, false, now);
            assert!(habit.until().is_none(), "it wants more of a proof now");
        }
        habit.woken(short, false, now);
        assert!(habit.until().is_some());
        habit.woken(SHORT_SLEEP * 2, false, now);
        assert!(habit.until().is_none(), "a long sleep is no reason");
    }

    #[test]
    fn a_target_spins_for_a_burst_at_most_and_then_not_for_as_long() {
        let (mut habit, now) = (SpinHabit::new(), Stamp::from_nanos(1_000_000));
        let wake = |habit: &mut SpinHabit, now| {
            habit.woken(Duration::ZERO, false, now);
            habit.until()
        };
        wake(&mut habit, now);
        let end = wake(&mut habit, now).expect("proved");
        habit.well();
        habit.spent(end);
        assert!(habit.until().is_none());
        assert!(wake(&mut habit, end.plus(PAUSE / 2)).is_none());
        assert!(wake(&mut habit, end.plus(PAUSE)).is_some(), "the proof still holds");
    }

    #[test]
    fn calls_from_the_own_cpu_are_no_reason_to_spin() {
        let (mut habit, now) = (SpinHabit::new(), Stamp::from_nanos(1_000_000));
        for _ in 0..10 {
            habit.woken(Duration::ZERO, true, now);
            assert!(habit.until().is_none());
        }
    }
}
