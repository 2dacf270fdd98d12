//! The targets of a call to many that are not woken yet: the caller lists them, and wakes them
//! together with the targets that have begun. `README.md` argues this (race 5), and
//! `tests/loom/sleepers.rs` checks it.

#![allow(unreachable_pub, reason = "only the models reach it")]

use std::mem::align_of;
use std::ptr;

use corewise_sync::Unparker;
use corewise_sync::atomic::{AtomicPtr, Ordering};

/// One target's owner side, for threads that wake it.
pub struct Sleeper {
    /// I: the handle that wakes it.
    unparker: Unparker,
    /// A: `UNLISTED`, or while it is in a list, the one below it. Written by the caller that listed
    /// it, and by the thread that takes it out.
    below: AtomicPtr<Sleeper>,
}

/// Value of `below` for a sleeper in no list.
const UNLISTED: *mut Sleeper = ptr::without_provenance_mut(1);

impl Sleeper {
    /// Creates the owner side that this unparker wakes.
    pub fn new(unparker: Unparker) -> Sleeper {
        Sleeper { unparker, below: AtomicPtr::new(UNLISTED) }
    }

    /// Wakes it (step Wake): leaves the parker's token.
    #[inline]
    pub(crate) fn wake(&self) {
        self.unparker.unpark();
    }

    /// Claims it for the caller's list; returns false if it is in another list. A target that
    /// another thread has woken may sleep again before its list reaches it.
    fn is_claimed(&self) -> bool {
        // Acquire pairs with the Release of `wake_all`.
        let (now, mine) = (UNLISTED, ptr::null_mut());
        self.below.compare_exchange(now, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Wakes it, although there may be a token already.
    pub(crate) fn wake_anyway(&self) {
        self.unparker.unpark_anyway();
    }
}

/// The sleepers of a call to many; see the head of the file.
pub struct Sleepers {
    /// A: the sleeper that was listed last, and `WAKING` and `HELPED`. All zero as long as no
    /// target was found asleep: so calls to targets that are awake don't write it.
    pub(crate) top: AtomicPtr<Sleeper>,
}

/// Flag: the caller has found a target asleep, and woken it.
const WAKING: usize = 1;
/// Flag: a target has begun its share since then, and wakes the listed ones; the caller lists all
/// others.
const HELPED: usize = 2;
const FLAGS: usize = WAKING | HELPED;
const _: () = assert!(align_of::<Sleeper>() > FLAGS);

/// Returns the sleeper that the word names.
fn first_of(top: *mut Sleeper) -> *mut Sleeper {
    top.map_addr(|top| top & !FLAGS)
}

impl Sleepers {
    /// Creates an empty list.
    #[allow(clippy::new_without_default, reason = "for the crate and its models alone")]
    pub fn new() -> Sleepers {
        Sleepers { top: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Resets the list for a new call, in a cell that had another one.
    pub(crate) fn reset(&self) {
        // Relaxed: the push of each share orders.
        self.top.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Wakes a target that the caller's push found asleep; or lists it, if there is help. Only the
    /// caller may call it.
    #[inline]
    pub fn wake_or_list(&self, sleeper: &Sleeper) {
        // Relaxed: a caller that learns late wakes one more by itself.
        let top = self.top.load(Ordering::Relaxed);
        if top.addr() == 0 {
            // No other thread writes before that.
            self.top.store(ptr::without_provenance_mut(WAKING), Ordering::Relaxed);
        }
        if top.addr() & HELPED == 0 || !sleeper.is_claimed() {
            return sleeper.wake();
        }
        self.list(top, sleeper);
    }

    /// Lists a sleeper that is the caller's to list.
    pub(crate) fn list(&self, mut top: *mut Sleeper, sleeper: &Sleeper) {
        let with = ptr::from_ref(sleeper).cast_mut().map_addr(|sleeper| sleeper | FLAGS);
        loop {
            sleeper.below.store(first_of(top), Ordering::Relaxed);
            // Release pairs with the Acquire of `wake_all`: the link, and the push of the sleeper's
            // share.
            match self.top.compare_exchange(top, with, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => top = found,
            }
        }
    }

    /// Records that a target has begun its share, and wakes the listed ones.
    ///
    /// # Safety
    /// The same as for [`Sleepers::wake_all`].
    #[inline]
    pub unsafe fn help(&self) {
        let top = self.top.load(Ordering::Relaxed);
        if top.addr() == WAKING {
            let helped = top.map_addr(|top| top | HELPED);
            // Relaxed: nothing is listed before it is set. Another thread may have set it, which is
            // as good.
            let _ = self.top.compare_exchange(top, helped, Ordering::Relaxed, Ordering::Relaxed);
        }
        // SAFETY: the caller promises it.
        unsafe { self.wake_all() };
    }

    /// Wakes the listed targets, until there are none.
    ///
    /// # Safety
    /// The call isn't over, and its targets live as long as it isn't.
    #[inline]
    pub unsafe fn wake_all(&self) {
        // Acquire pairs with the Release of `wake_or_list`.
        let mut top = self.top.load(Ordering::Acquire);
        // SAFETY: the caller promises that the listed targets live.
        while let Some(first) = unsafe { first_of(top).as_ref() } {
            // If others have taken `first`, this may be of another list, and the exchange fails.
            let below = first.below.load(Ordering::Relaxed).map_addr(|below| below | FLAGS);
            match self.top.compare_exchange(top, below, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    first.below.store(UNLISTED, Ordering::Release);
                    first.wake();
                    top = below;
                }
                Err(found) => top = found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use corewise_topology::{CpuId, CpuSet};

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use crate::smp::{Smp, Targets};
    use crate::target::{CallTarget, Step};
    use corewise_topology::Machine;

    /// Creates targets that have announced that they sleep, and take no token.
    fn asleep(cpus: u32) -> (Smp, Vec<CallTarget>) {
        let machine =
            Machine::synthetic(&format!("core:{cpus} pu:1")).expect("a valid description");
        let (smp, mut targets) = crate::model::stepped(Smp::builder(&machine));
        for target in &mut targets {
            assert_eq!(target.step(), Step::Idle);
            let state = target.target.state();
            assert!(state.announce_park(state.snapshot()));
        }
        (smp, targets)
    }

    fn woken(targets: &[CallTarget]) -> Vec<bool> {
        targets.iter().map(|target| target.parker.try_park()).collect()
    }

    #[test]
    fn rule_7_those_that_a_caller_lists_because_one_has_begun_are_woken_when_all_are_told() {
        let (smp, mut targets) = asleep(5);
        let mut first = targets.remove(0);
        let cpus = CpuSet::full(5);
        let every = cpus.filter(|cpu| {
            if cpu == CpuId::new(2) {
                assert_eq!(first.step(), Step::Ran(1), "it helps from now on");
            }
            true
        });
        let call = smp.call_each(every, |_| ());
        assert_eq!(woken(&targets), [true; 4]);
        drop(call);
    }

    #[test]
    fn those_that_were_told_are_woken_where_the_condition_panics() {
        let (smp, mut targets) = asleep(5);
        let mut first = targets.remove(0);
        let told = catch_unwind(AssertUnwindSafe(|| {
            let cpus = CpuSet::full(5);
            let every = cpus.filter(|cpu| {
                if cpu == CpuId::new(2) {
                    assert_eq!(first.step(), Step::Ran(1), "it helps from now on");
                }
                assert_ne!(cpu.number(), 4, "on purpose");
                true
            });
            smp.call_each(every, |_| ())
        }));
        assert!(told.is_err());
        assert_eq!(woken(&targets), [true, true, true, false]);
    }
}
