//! How targets and waiters spin before they sleep, and learn whether that pays. The decisions are in
//! `policy.rs`.
//!
//! A waiter looks for two to five microseconds before it sleeps. Where it has paid lately, it spins for up to 50 us until its
//! answer is there, and a target until the next call comes: about as long as a wake-up costs where the system is a guest. Neither
//! does where that is in vain: it is tried again only after more and more calls for which it would have paid.
//!
//! A waiter that spins may be preempted, as it would be at any other work; one on a worker's thread, for whose
//! core its pool has other work, or on its target's own CPU, doesn't spin so long. On a synthetic machine targets
//! never spin.
//!
//! A target of an ordinary priority spins for as long as calls keep coming: the scheduler has others that want its CPU
//! share it. A target of a real-time priority ([`Priority::Fifo`]) or a niceness below 0 would keep
//! it from them: so after 150 us that one goes on as an ordinary thread, and takes its priority back before it sleeps. Where it
//! couldn't take it back (the process has given up the right to it), or its thread is the program's, it sleeps after 150 us, and for
//! as long it doesn't spin then; others get less than a tenth of its CPU, since each sleep ends with a call. (It looks at the clock
//! once in 16 calls that it spun for: where their functions take long it is later by those.)

pub(crate) mod policy;
mod waiter;

pub(crate) use waiter::Patience;

use corewise_sync::time::Stamp;
use corewise_sync::{hint, sys};

use crate::priority::{self, Priority};
use policy::{BURST, SPIN, SpinHabit};

/// How often a target that spins looks before it reads the clock.
const LOOKS: u32 = 32;
/// How often a target that finds something at once finds it before it reads the clock.
const FINDS: u32 = 16;
/// How many steps in a row find something to run before an urgent target reads the clock.
const STEPS: u32 = 16;

/// A target's side of it. Where it never spins, it reads no clock either.
pub(crate) struct Spinner {
    spins: bool,
    habit: SpinHabit,
    /// Since when it sleeps, until it has found out why it was woken.
    asleep: Option<(Stamp, Stamp)>,
    /// Calls that came while it spun.
    found: u32,
    /// Steps in a row that ran something, and since when, once there are [`STEPS`].
    worked: u32,
    working_since: Option<Stamp>,
    /// The priority of its thread, if that is ours and this keeps its CPU from others.
    urgent: Option<Priority>,
    /// It has given that up for as long as it spins.
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

    /// A step has run something. Where none finds nothing, the target never rests: an urgent one would keep its CPU
    /// from others for as long.
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

    /// Spins for as long as it pays, until there is something: whether there is.
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

    /// A burst is over: the end of the next one, if that follows.
    #[cold]
    fn ends(&mut self, now: Stamp) -> Option<Stamp> {
        let shares_its_cpu = sys::shares_its_cpu() || self.lowers();
        self.habit.ends(now, shares_its_cpu)
    }

    /// Lower: it goes on as an ordinary thread, if it can be urgent again.
    fn lowers(&mut self) -> bool {
        let can = self.urgent.is_some_and(priority::can_be_taken_again);
        self.lowered |= can && priority::set(Priority::Plain).is_ok();
        can && self.lowered
    }

    /// Raise: it is about to sleep, and has to be woken at once. False: the system refuses, since it was given fewer rights
    /// meanwhile; that is said.
    #[inline]
    pub(crate) fn raises(&mut self) -> bool {
        !self.lowered || self.raise()
    }

    #[cold]
    fn raise(&mut self) -> bool {
        self.lowered = false;
        // Else somebody else has changed it meanwhile.
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

    /// Its thread is ours, and got this priority.
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

    /// It has taken calls. `from_here`: from its own CPU.
    #[inline]
    pub(crate) fn has_work(&mut self, from_here: impl FnOnce() -> bool) {
        if let Some((since, until)) = self.asleep.take() {
            self.habit.woken(until.since(since), from_here(), until);
        }
    }
}
