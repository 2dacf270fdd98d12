//! Spinning of targets and waiters before they sleep, and their experience whether that pays.
//!
//! A waiter checks for two to five microseconds before it sleeps. If spinning has paid lately, the
//! waiter spins for up to 50 us until its answer is there, and a target until the next call comes.
//! That is about the cost of a wake-up in a guest system. If spinning was in vain, it is tried
//! again only after more and more calls for which it would have paid.
//!
//! A waiter that spins may be preempted, as it would be at any other work. A waiter doesn't spin
//! that long on a worker's thread, for whose core its pool has other work, or on its target's own
//! CPU. On a synthetic machine targets never spin.
//!
//! A target of an ordinary priority spins for as long as calls keep coming: the scheduler has other
//! threads that want its CPU share it. A target of a real-time priority ([`Priority::Fifo`]) or a
//! niceness below 0 would keep the CPU from them. So after 150 us it continues as an ordinary
//! thread, and takes its priority back before it sleeps. If it couldn't take the priority back (the
//! process has given up the right to it), or its thread is the program's, it sleeps after 150 us.
//! It then doesn't spin for as long. Others then get less than a tenth of its CPU, since each sleep
//! ends with a call. (It reads the clock once in 16 calls that it spun for: if their functions take
//! long, it is later by those.)

use std::time::Duration;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::time::Stamp;
use corewise_sync::{Proof, Signal, context, hint, sys};

use crate::priority::{self, Priority};

/// Number of checks of a spinning target between two readings of the clock.
const LOOKS: u32 = 32;
/// Number of times that a target finds a call at once before it reads the clock.
const FINDS: u32 = 16;
/// Number of steps in a row with a call to run before an urgent target reads the clock.
const STEPS: u32 = 16;

/// A target's spinning. A target that never spins reads no clock either.
pub(crate) struct Spinner {
    spins: bool,
    habit: SpinHabit,
    /// Start of its sleep, until it knows the reason for its wake-up.
    asleep: Option<(Stamp, Stamp)>,
    /// Calls that came while it spun.
    found: u32,
    /// Number of steps in a row that ran a call, and the start of the row, once there are
    /// [`STEPS`].
    worked: u32,
    working_since: Option<Stamp>,
    /// The priority of its thread, if that is ours and this keeps its CPU from others.
    urgent: Option<Priority>,
    /// True while it has given that priority up: for as long as it spins.
    lowered: bool,
}

impl Spinner {
    pub(crate) fn new(spins: bool) -> Self {
        Spinner {
            spins,
            habit: SpinHabit::new(),
            asleep: None,
            found: 0,
            worked: 0,
            working_since: None,
            urgent: None,
            lowered: false,
        }
    }

    /// Records that a step has run a call. If every step does, the target never rests: an urgent
    /// one would keep its CPU from others for as long.
    #[inline]
    pub(crate) fn works(&mut self) {
        self.worked += 1;
        if self.worked == STEPS {
            self.worked = 0;
            self.works_on();
        }
    }

    #[cold]
    fn works_on(&mut self) {
        if self.urgent.is_none() || self.lowered {
            return;
        }
        let now = Stamp::precise();
        if now.since(*self.working_since.get_or_insert(now)) >= BURST && !sys::shares_its_cpu() {
            self.lowers();
        }
    }

    /// Spins for as long as it pays, until there is a call; returns whether there is one.
    #[inline]
    pub(crate) fn spin(&mut self, there_is: impl Fn() -> bool) -> bool {
        (self.worked, self.working_since) = (0, None);
        let Some(mut until) = self.habit.until() else { return false };
        let mut since = None;
        loop {
            for _ in 0..LOOKS {
                if there_is() {
                    self.finds(until);
                    return true;
                }
                hint::spin_loop();
            }
            let now = Stamp::precise();
            if now >= until {
                match self.ends(now) {
                    Some(next) => until = next,
                    None => return false,
                }
            }
            if now.since(*since.get_or_insert(now)) >= SPIN {
                self.habit.in_vain();
                return false;
            }
        }
    }

    /// Ends a burst; returns the end of the next one, if that follows.
    #[cold]
    fn ends(&mut self, now: Stamp) -> Option<Stamp> {
        let shares_its_cpu = sys::shares_its_cpu() || self.lowers();
        self.habit.ends(now, shares_its_cpu)
    }

    /// Lowers the priority: the target continues as an ordinary thread, if it can become urgent
    /// again (step Lower).
    fn lowers(&mut self) -> bool {
        let can = self.urgent.is_some_and(priority::can_be_taken_again);
        self.lowered |= can && priority::set(Priority::Plain).is_ok();
        can && self.lowered
    }

    /// Raises the priority: the target is about to sleep, and has to wake at once (step Raise).
    /// Returns false if the system refuses, since the process lost the right meanwhile; that is
    /// logged.
    #[inline]
    pub(crate) fn raises(&mut self) -> bool {
        !self.lowered || self.raise()
    }

    #[cold]
    fn raise(&mut self) -> bool {
        self.lowered = false;
        // Otherwise another program has changed it meanwhile.
        if let Some(urgent) = self.urgent {
            if sys::shares_its_cpu() {
                if let Err(error) = priority::set(urgent) {
                    let what = "a call target lost the right to its priority, and stays an ordinary thread";
                    tracing::warn!(priority = %urgent, %error, "{what}");
                    return false;
                }
            }
        }
        true
    }

    #[inline]
    fn finds(&mut self, until: Stamp) {
        self.found = self.found.wrapping_add(1);
        self.habit.well();
        if self.found % FINDS == 0 {
            let now = Stamp::precise();
            if now >= until {
                self.ends(now);
            }
        }
    }

    /// Records that its thread is ours, and got this priority.
    pub(crate) fn runs_at(&mut self, granted: Option<Priority>) {
        self.urgent = granted;
    }

    pub(crate) fn sleeps(&mut self) {
        if self.spins {
            let now = Stamp::precise();
            self.asleep = Some((now, now));
        }
    }

    pub(crate) fn wakes(&mut self) {
        if let Some((_, until)) = &mut self.asleep {
            *until = Stamp::precise();
        }
    }

    /// Records that it has taken calls. `from_here`: from its own CPU.
    #[inline]
    pub(crate) fn has_work(&mut self, from_here: impl FnOnce() -> bool) {
        if let Some((since, until)) = self.asleep.take() {
            self.habit.woken(until.since(since), from_here(), until);
        }
    }
}

/// Returns how often a waiter checks before it does anything else. On the CPU that it waits for,
/// checking only keeps that from answering.
pub(crate) fn brief_looks(on_target: bool) -> u32 {
    match on_target {
        _ if hint::EVERY_SCHEDULE => 1,
        true => 0,
        false => BRIEF_LOOKS,
    }
}

/// Number of checks that take two to five microseconds.
const BRIEF_LOOKS: u32 = 128;

/// Returns true if a waiter that has checked in vain may spin for as long as a wake-up costs. It
/// may if that is proved, its pool has no other work for the core, and it doesn't stand in its
/// target's way.
pub(crate) fn waits_by_spinning(proof: Proof, on_target: bool, observed: bool) -> bool {
    proof.is_given() && !on_target && !observed
}

/// Time for which a target or a waiter with a reason spins. In that time a caller that was woken by
/// its answer has called again, or a target that was woken has answered. A wake-up costs 2 to 5 us,
/// and 30 and more if the system runs as a guest.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// Length of a sleep that would have been none for a thread that spins: the time until it was
/// woken, and as much again until it ran.
pub(super) const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// Time for which a target stays awake before it makes way for other threads, and continues as an
/// ordinary thread. A target that can't doesn't spin for as long after it: so it spins half of the
/// time at most. That is no share for the others: calls without a gap end each sleep at once.
pub(super) const BURST: Duration = Duration::from_micros(150);
const PAUSE: Duration = BURST;

/// Returns true if targets spin at all: not if a CPU is only a name, and not if there is no other
/// one to call from.
pub(crate) fn targets_spin(synthetic: bool, cpus: usize) -> bool {
    !synthetic && cpus > 1
}

/// The habit of a target that spins before it sleeps. It spins only while calls come in faster than
/// it could be woken. If it keeps its CPU from others, it has a budget.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpinHabit {
    proof: Proof,
    /// The end of its burst; `None` if it doesn't spin.
    until: Option<Stamp>,
    /// Time before which it doesn't spin again.
    not_before: Stamp,
}

impl SpinHabit {
    pub(crate) fn new() -> Self {
        let not_before = Stamp::from_nanos(0);
        SpinHabit { proof: Proof::NEW, until: None, not_before }
    }

    /// Returns the time until which it may spin now, if at all.
    pub(crate) fn until(&self) -> Option<Stamp> {
        self.until
    }

    /// Records that it was woken, at last, by a call from its own CPU (`from_here`) or another one.
    /// A caller on its own CPU can't call while it spins there.
    pub(crate) fn woken(&mut self, slept: Duration, from_here: bool, now: Stamp) {
        self.proof.slept(slept <= SHORT_SLEEP && !from_here);
        let spins = self.proof.is_given() && now >= self.not_before;
        self.until = spins.then(|| now.plus(BURST));
    }

    /// Records that a call came while it spun.
    pub(crate) fn well(&mut self) {
        self.proof.tried(true);
    }

    /// Records that no call came while it spun.
    pub(crate) fn in_vain(&mut self) {
        self.proof.tried(false);
        self.until = None;
    }

    /// Ends its burst; returns the end of the next one, if that follows. If it shares its CPU, the
    /// scheduler serves other threads. Otherwise it makes a pause, as long as it was awake, if that
    /// was longer.
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

/// Number of checks of a waiter between two readings of the clock.
const WAITER_LOOKS: u32 = 32;

/// Experience of the waiters of one source CPU.
pub(crate) struct WaiterHabit {
    /// A: a [`Proof`]. Relaxed, and a write may be lost to another: it is experience, and orders
    /// nothing.
    proof: AtomicU32,
}

/// A wait that a brief check didn't end.
pub(crate) struct Wait {
    began: Stamp,
}

impl WaiterHabit {
    pub(crate) fn new() -> Self {
        WaiterHabit { proof: AtomicU32::new(Proof::NEW.pack()) }
    }

    /// Checks, as often as may be. Returns `None` if it has happened; else the caller sleeps, and
    /// reports after that it [has](WaiterHabit::slept).
    #[inline]
    pub(crate) fn spin(&self, signal: &Signal, on_target: bool) -> Option<Wait> {
        if signal.spin(brief_looks(on_target)) {
            return None;
        }
        self.spin_on(signal, on_target)
    }

    #[cold]
    fn spin_on(&self, signal: &Signal, on_target: bool) -> Option<Wait> {
        let began = Stamp::precise();
        let mut proof = self.proof();
        if waits_by_spinning(proof, on_target, context::is_observed()) {
            loop {
                let well = signal.spin(WAITER_LOOKS);
                if well || Stamp::precise().since(began) >= SPIN {
                    proof.tried(well);
                    self.learn(proof);
                    if well {
                        return None;
                    }
                    break;
                }
            }
        }
        Some(Wait { began })
    }

    /// Records that the waiter has slept, and it has happened.
    #[cold]
    pub(crate) fn slept(&self, wait: &Wait, on_target: bool) {
        let mut proof = self.proof();
        proof.slept(Stamp::precise().since(wait.began) <= SHORT_SLEEP && !on_target);
        self.learn(proof);
    }

    fn proof(&self) -> Proof {
        Proof::unpack(self.proof.load(Ordering::Relaxed))
    }

    fn learn(&self, proof: Proof) {
        self.proof.store(proof.pack(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Stamp = Stamp::from_nanos(1_000_000);

    /// Returns whether it spins after a sleep of that length.
    fn wake(habit: &mut SpinHabit, slept: Duration, now: Stamp) -> bool {
        habit.woken(slept, false, now);
        habit.until().is_some()
    }

    /// Returns one that has begun to spin, and the end of its burst.
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

#[cfg(test)]
mod waiter_tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn after_short_waits_it_spins_until_the_answer_is_there_or_learns_that_it_is_in_vain() {
        let (waiter_habit, signal) = (WaiterHabit::new(), Arc::new(Signal::new()));
        let mut given = Proof::NEW;
        given.tried(true);
        waiter_habit.learn(given);
        assert!(waiter_habit.spin(&signal, false).is_some(), "nobody answers");
        assert!(!waiter_habit.proof().is_given());
        waiter_habit.learn(given);
        let other = Arc::clone(&signal);
        // SAFETY: once.
        let answers = std::thread::spawn(move || unsafe { Signal::complete(&*other) });
        while waiter_habit.spin(&signal, false).is_some() {
            waiter_habit.learn(given);
        }
        answers.join().expect("no panic");
    }
}
