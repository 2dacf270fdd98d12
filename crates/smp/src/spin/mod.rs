//! How targets and waiters spin before they sleep, and learn whether that pays. The decisions are in
//! `policy.rs`.

pub(crate) mod policy;
mod waiter;

pub(crate) use waiter::Patience;

/// Who may spin for a moment before it sleeps. [`SmpBuilder::spin`](crate::SmpBuilder::spin)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Spin {
    /// Nobody: whoever has nothing to do sleeps at once, and each call costs two wake-ups.
    Never,
    /// A waiter looks for two to five microseconds before it sleeps. A target doesn't spin.
    Brief,
    /// As `Brief`; and where it has paid lately, a waiter spins for up to 50 us until its answer is there, and a target
    /// until the next call comes: about as long as a wake-up costs where the system is a guest. Neither
    /// does where that is in vain: it is tried again only after more and more calls for which it would have
    /// paid.
    ///
    /// A waiter that spins may be preempted, as it would be at any other work; one on a worker's thread, for whose
    /// core its pool has other work, or on its target's own CPU, doesn't spin so long. On a synthetic machine targets
    /// never spin.
    ///
    /// A target of an ordinary priority spins for as long as calls keep coming: the scheduler has others that want its CPU
    /// share it. A target of a real-time priority ([`Priority::Fifo`](crate::Priority::Fifo)) or a niceness below 0 would keep
    /// it from them: so after 150 us that one sleeps again, and for as long it doesn't spin then. Where calls follow each other
    /// without a gap others get less than a tenth of its CPU all the same, since each sleep ends with a call. (It looks at the clock
    /// once in 16 calls that it spun for: where their functions take long it is later by those.)
    #[default]
    Habit,
}

use corewise_sync::time::Stamp;
use corewise_sync::{hint, sys};

use policy::{SPIN, SpinHabit};

/// How often a target that spins looks before it reads the clock.
const LOOKS: u32 = 32;
/// How often a target that finds something at once finds it before it reads the clock.
const FINDS: u32 = 16;

/// A target's side of it. Where it never spins, it reads no clock either.
pub(crate) struct Spinner {
    spins: bool,
    habit: SpinHabit,
    /// Since when it sleeps, until it has found out why it was woken.
    asleep: Option<(Stamp, Stamp)>,
    /// Calls that came while it spun.
    found: u32,
}

impl Spinner {
    pub(crate) fn new(spins: bool) -> Self {
        Spinner { spins, habit: SpinHabit::new(), asleep: None, found: 0 }
    }

    /// Spins for as long as it pays, until there is something: whether there is.
    #[inline]
    pub(crate) fn spin(&mut self, there_is: impl Fn() -> bool) -> bool {
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
                match self.habit.ends(now, sys::shares_its_cpu()) {
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

    #[inline]
    fn finds(&mut self, until: Stamp) {
        self.found = self.found.wrapping_add(1);
        self.habit.well();
        if self.found.is_multiple_of(FINDS) {
            let now = Stamp::precise();
            if now >= until {
                self.habit.ends(now, sys::shares_its_cpu());
            }
        }
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
