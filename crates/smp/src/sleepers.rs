//! The targets of a call to many that nobody has woken yet: the caller lists them, and it and the targets that have begun
//! wake them. See `README.md`, race 5.

use std::mem::align_of;
use std::ptr;

use corewise_sync::Unparker;
use corewise_sync::atomic::{AtomicPtr, Ordering};

/// One target's owner side, for those who wake it.
pub(crate) struct Sleeper {
    /// I: wakes it.
    unparker: Unparker,
    /// A: `UNLISTED`, or while it is in a list, the one below it. Written by the caller that listed it, and by the thread
    /// that takes it out.
    below: AtomicPtr<Sleeper>,
}

/// In `below`: it is in no list.
const UNLISTED: *mut Sleeper = ptr::without_provenance_mut(1);

impl Sleeper {
    pub(crate) fn new(unparker: Unparker) -> Sleeper {
        Sleeper { unparker, below: AtomicPtr::new(UNLISTED) }
    }

    /// Step Wake: leaves the parker's token.
    #[inline]
    pub(crate) fn wake(&self) {
        self.unparker.unpark();
    }

    /// Whether it is the caller's to list: it is in no other list. A target that was woken by somebody else may be
    /// asleep again before the list that it is in has got to it.
    fn is_claimed(&self) -> bool {
        // Acquire pairs with the Release of `wake_all`.
        let (now, mine) = (UNLISTED, ptr::null_mut());
        self.below.compare_exchange(now, mine, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Wakes it, though there may be a token already.
    pub(crate) fn wake_anyway(&self) {
        self.unparker.unpark_anyway();
    }
}

/// See the head of the file.
pub(crate) struct Sleepers {
    /// A: the sleeper that was listed last, and `WAKING` and `HELPED`. All zero as long as no target was found asleep: so
    /// calls to targets that are awake don't write it.
    top: AtomicPtr<Sleeper>,
}

/// The caller has found one asleep, and woken it.
const WAKING: usize = 1;
/// A target has begun its share since then, and wakes those that are listed: the caller lists all others.
const HELPED: usize = 2;
const FLAGS: usize = WAKING | HELPED;
const _: () = assert!(align_of::<Sleeper>() > FLAGS);

/// The sleeper that the word names.
fn first_of(top: *mut Sleeper) -> *mut Sleeper {
    top.map_addr(|top| top & !FLAGS)
}

impl Sleepers {
    pub(crate) fn new() -> Sleepers {
        Sleepers { top: AtomicPtr::new(ptr::null_mut()) }
    }

    /// A new call begins, in a cell that had another one.
    pub(crate) fn reset(&self) {
        // Relaxed: the push of each share orders.
        self.top.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Wakes a target that the caller's push found asleep; or lists it, if there is help. Only for the caller.
    #[inline]
    pub(crate) fn wake_or_list(&self, sleeper: &Sleeper) {
        // Relaxed: a caller that learns late wakes one more by itself.
        let mut top = self.top.load(Ordering::Relaxed);
        if top.addr() == 0 {
            // Nobody else writes before that.
            self.top.store(ptr::without_provenance_mut(WAKING), Ordering::Relaxed);
        }
        if top.addr() & HELPED == 0 || !sleeper.is_claimed() {
            return sleeper.wake();
        }
        let with = ptr::from_ref(sleeper).cast_mut().map_addr(|sleeper| sleeper | FLAGS);
        loop {
            sleeper.below.store(first_of(top), Ordering::Relaxed);
            // Release pairs with the Acquire of `wake_all`: the link, and the push of the sleeper's share.
            match self.top.compare_exchange(top, with, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => top = found,
            }
        }
    }

    /// A target has begun its share: it wakes those that are listed.
    ///
    /// # Safety
    /// As [`Sleepers::wake_all`].
    #[inline]
    pub(crate) unsafe fn help(&self) {
        let top = self.top.load(Ordering::Relaxed);
        if top.addr() == WAKING {
            let helped = top.map_addr(|top| top | HELPED);
            // Relaxed: nothing is listed before it is set. Another may have set it, which is as good.
            let _ = self.top.compare_exchange(top, helped, Ordering::Relaxed, Ordering::Relaxed);
        }
        // SAFETY: the caller promises it.
        unsafe { self.wake_all() };
    }

    /// Wakes those that are listed, until there are none.
    ///
    /// # Safety
    /// The call isn't over, and its targets live as long as it isn't.
    #[inline]
    pub(crate) unsafe fn wake_all(&self) {
        // Acquire pairs with the Release of `wake_or_list`.
        let mut top = self.top.load(Ordering::Acquire);
        // SAFETY: the caller promises that the listed targets live.
        while let Some(first) = unsafe { first_of(top).as_ref() } {
            // Where others have taken `first`, this may be of another list, and the exchange fails.
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
