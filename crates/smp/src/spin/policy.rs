//! Which threads spin before they sleep, and for how long, as functions of plain values.

use std::time::Duration;

use corewise_sync::time::Stamp;
use corewise_sync::{Proof, hint};

/// How often a waiter looks before it does anything else. Where it is on the CPU that it waits for, it only keeps
/// that from answering.
pub(crate) fn brief_looks(on_target: bool) -> u32 {
    match on_target {
        _ if hint::EVERY_SCHEDULE => 1,
        true => 0,
        false => BRIEF_LOOKS,
    }
}

/// Two to five microseconds.
const BRIEF_LOOKS: u32 = 128;

/// Whether a waiter that has looked in vain may spin for as long as a wake-up costs: where that is proved, its pool
/// has no other work for the core, and it doesn't stand in its target's way.
pub(crate) fn waits_by_spinning(proof: Proof, on_target: bool, observed: bool) -> bool {
    proof.is_given() && !on_target && !observed
}

/// How long a target or a waiter spins that has reason to: until a caller that was woken by its answer has called
/// again; until a target that was woken has answered. A wake-up costs 2 to 5 us, and 30 and more where the system
/// runs as a guest.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// A sleep that was over so soon would have been no sleep for one who spins: the time until it was woken, and as
/// much again until it ran.
pub(super) const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// How long a target stays awake without a sleep before it is asked whether others get its CPU meanwhile, and goes on as
/// an ordinary thread; and how long one that can't then doesn't spin: so it spins half of the time at most. It is no share for
/// the others: calls without a gap end each sleep at once. (Where all make that pause, on 16 simulated CPUs: hot calls at SCHED_FIFO
/// take 7.35 us for 0.82 at p99, and 1.48 of the CPU time; 9686cbc.)
pub(super) const BURST: Duration = Duration::from_micros(150);
const PAUSE: Duration = BURST;

/// Whether targets spin at all: not where a CPU is only a name, and not where there is no other one to call from.
pub(crate) fn targets_spin(synthetic: bool, cpus: usize) -> bool {
    !synthetic && cpus > 1
}

/// Whether a target spins before it sleeps: only while calls come in faster than it could be woken, and within a budget
/// where it keeps its CPU from others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpinHabit {
    proof: Proof,
    /// The end of its burst; `None`: it doesn't spin.
    until: Option<Stamp>,
    /// Before that it doesn't spin again.
    not_before: Stamp,
}

impl SpinHabit {
    pub(crate) fn new() -> Self {
        let not_before = Stamp::from_nanos(0);
        SpinHabit { proof: Proof::NEW, until: None, not_before }
    }

    /// Until when it may spin now, if at all.
    pub(crate) fn until(&self) -> Option<Stamp> {
        self.until
    }

    /// It was woken, at last, by a call from its own CPU (`from_here`) or another one. A caller on its own
    /// CPU can't call while it spins there.
    pub(crate) fn woken(&mut self, slept: Duration, from_here: bool, now: Stamp) {
        self.proof.slept(slept <= SHORT_SLEEP && !from_here);
        let spins = self.proof.is_given() && now >= self.not_before;
        self.until = spins.then(|| now.plus(BURST));
    }

    /// A call came while it spun.
    pub(crate) fn well(&mut self) {
        self.proof.tried(true);
    }

    /// No call came while it spun.
    pub(crate) fn in_vain(&mut self) {
        self.proof.tried(false);
        self.until = None;
    }

    /// Its burst is over: the end of the next one, if that follows. Where it shares its CPU the scheduler sees to those
    /// that want it. Else it makes a pause, as long as it was awake, should that have been longer.
    pub(crate) fn ends(&mut self, now: Stamp, shares_its_cpu: bool) -> Option<Stamp> {
        let over = self.until.take().map_or(Duration::ZERO, |until| now.since(until));
        if shares_its_cpu {
            self.until = Some(now.plus(BURST));
        } else {
            self.not_before = now.plus(PAUSE + over);
        }
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Stamp = Stamp::from_nanos(1_000_000);

    /// Whether it spins after a sleep of that length.
    fn wake(habit: &mut SpinHabit, slept: Duration, now: Stamp) -> bool {
        habit.woken(slept, false, now);
        habit.until().is_some()
    }

    /// One that has begun to spin, and the end of its burst.
    fn spinning() -> (SpinHabit, Stamp) {
        let mut habit = SpinHabit::new();
        wake(&mut habit, Duration::ZERO, MOMENT);
        assert!(wake(&mut habit, Duration::ZERO, MOMENT));
        habit.well();
        (habit, MOMENT.plus(BURST))
    }

    #[test]
    fn a_target_spins_after_short_sleeps_and_no_more_where_that_was_in_vain() {
        let mut habit = SpinHabit::new();
        let short = SHORT_SLEEP / 2;
        assert!(!wake(&mut habit, short, MOMENT), "one may be chance");
        assert!(wake(&mut habit, short, MOMENT));
        assert_eq!(habit.until(), Some(MOMENT.plus(BURST)));
        habit.in_vain();
        assert!(habit.until().is_none());
        for _ in 0..3 {
            assert!(!wake(&mut habit, short, MOMENT), "it wants more of a proof now");
        }
        assert!(wake(&mut habit, short, MOMENT));
        assert!(!wake(&mut habit, SHORT_SLEEP * 2, MOMENT), "a long sleep is no reason");
    }

    #[test]
    fn a_target_that_shares_its_cpu_spins_for_as_long_as_calls_come() {
        let (mut habit, mut end) = spinning();
        for _ in 0..1000 {
            // Others had its CPU meanwhile, or a function took long.
            let now = end.plus(PAUSE * 3);
            assert_eq!(habit.ends(now, true), Some(now.plus(BURST)));
            end = now.plus(BURST);
        }
        habit.in_vain();
        assert!(habit.until().is_none(), "none comes any more");
    }

    #[test]
    fn a_target_that_keeps_its_cpu_from_others_spins_for_a_burst_and_then_not_for_as_long() {
        let (mut habit, end) = spinning();
        assert_eq!(habit.ends(end, false), None);
        assert!(!wake(&mut habit, Duration::ZERO, end.plus(PAUSE / 2)));
        let late = end.plus(PAUSE);
        assert!(wake(&mut habit, Duration::ZERO, late), "the proof still holds");
        let end = late.plus(BURST * 2);
        assert_eq!(habit.ends(end, false), None);
        assert!(
            !wake(&mut habit, Duration::ZERO, end.plus(PAUSE)),
            "it was awake for twice as long"
        );
        assert!(wake(&mut habit, Duration::ZERO, end.plus(PAUSE * 2)));
    }

    #[test]
    fn calls_from_the_own_cpu_are_no_reason_to_spin() {
        let mut habit = SpinHabit::new();
        for _ in 0..10 {
            habit.woken(Duration::ZERO, true, MOMENT);
            assert!(habit.until().is_none());
        }
    }

    #[test]
    fn a_waiter_spins_where_answers_come_soon_and_nobody_else_wants_its_core() {
        let mut proof = Proof::NEW;
        (0..2).for_each(|_| proof.slept(true));
        assert!(waits_by_spinning(proof, false, false));
        assert!(!waits_by_spinning(proof, true, false), "on the target's own CPU");
        assert!(!waits_by_spinning(proof, false, true), "on a worker");
        proof.tried(false);
        assert!(!waits_by_spinning(proof, false, false));
        assert_eq!(brief_looks(true), 0);
        assert!(brief_looks(false) > 0);
    }
}
