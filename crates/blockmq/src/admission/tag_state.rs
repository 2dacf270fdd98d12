//! The state word of a tag: whether the driver has its request, the request's deadline, and the
//! side that ends the request if its completion and its timeout meet.
//!
//! `../timeout/README.md` names the steps and argues them.

use std::fmt;
use std::marker::PhantomData;

use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy};
use corewise_sync::time::Stamp;

/// The driver has the request.
const IN_FLIGHT: u64 = 1;
/// The timeout handler looks at the request: a completer now leaves it to the handler.
const HELD: u64 = 2;
/// The request was completed meanwhile, and lies in `left`.
const LEFT: u64 = 4;
/// The driver has had the timeout reported and keeps the request: the timer doesn't report it
/// again.
const TOLD: u64 = 8;
/// Mask of the flags. The other bits are the deadline, in nanoseconds, rounded down to 16 of them.
const FLAGS: u64 = 15;

/// The fate of a request when the timeout handler lets go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The request gets until this time.
    Until(Stamp),
    /// The driver ends the request: it is never held again.
    Told,
}

/// The state of one tag, and the place where `N`, the request, waits if its completion met the
/// handler.
pub struct TagState<N> {
    /// A: the flags above and the deadline. IDLE is 0.
    word: AtomicU64,
    /// L: is the lock; guards the request that was left. The side that sets LEFT holds the lock, so
    /// that the handler that sees LEFT finds the request. If two sides would leave one, only the
    /// first does.
    left: SpinLock<Option<N>>,
}

impl<N> TagState<N> {
    /// Creates the state of a free tag.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(0), left: SpinLock::new(None) }
    }

    /// Records that the driver is about to get the request (Start). The caller has taken the tag.
    pub fn start(&self, deadline: Stamp) {
        // A plain store: while the tag is idle no other thread writes. Release: the holder of the
        // request sees the earlier writes about it.
        self.word.store(deadline.nanos() & !FLAGS | IN_FLIGHT, Ordering::Release);
    }

    /// Undoes [`TagState::start`] for a request that the driver didn't take. The request isn't
    /// held: the handler waits for the dispatch to end before it holds anything.
    pub fn undo(&self) {
        let was = self.word.swap(0, Ordering::Relaxed);
        debug_assert!(was & HELD == 0, "a request is held that the driver hasn't taken yet");
    }

    /// Finishes the request, which the driver has completed (Finish). If the request comes back,
    /// the caller ends it. `None`: the handler holds it, and ends it when it lets go. Either way
    /// the tag stays taken until the request ends. If another request was left already (a tag that
    /// was given out twice), this one is given back too.
    #[must_use = "the caller that gets the request back ends it"]
    pub fn finish(&self, node: N) -> Option<N> {
        let mut was = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert!(was & IN_FLIGHT != 0, "completed twice: {was:x}");
            if was & LEFT != 0 {
                return Some(node);
            }
            if was & HELD == 0 {
                // AcqRel: this comes after the handler that let go before. The word becomes IDLE in
                // the same step. The free of the tag (Release), which comes after this, orders it
                // before the tag's next Start.
                match self.word.compare_exchange_weak(was, 0, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => return Some(node),
                    Err(now) => was = now,
                }
                continue;
            }
            // Leave. This happens under the lock, so that the handler finds the request.
            let mut left = self.left.lock();
            let leave = was | LEFT;
            match self.word.compare_exchange(was, leave, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    *left = Some(node);
                    return None;
                }
                // The handler has just let go, without having seen it: this thread still has it.
                Err(now) => was = now,
            }
        }
    }

    /// Returns the deadline of the driver's request, if its timeout wasn't reported. Relaxed: this
    /// is only a look.
    pub fn deadline(&self) -> Option<Stamp> {
        let word = self.word.load(Ordering::Relaxed);
        let watched = word & IN_FLIGHT != 0 && word & (LEFT | TOLD) == 0;
        watched.then(|| Stamp::from_nanos(word & !FLAGS))
    }

    /// Keeps a request that is late at `now` from ending until [`TagState::release`], which the
    /// caller then owes (Hold). One handler at a time.
    #[must_use = "a held request has to be released"]
    pub fn hold(&self, now: Stamp) -> bool {
        let mut was = self.word.load(Ordering::Relaxed);
        loop {
            let held = was & IN_FLIGHT != 0 && was & (HELD | LEFT | TOLD) == 0;
            if !held || was & !FLAGS > now.nanos() {
                return false;
            }
            // Acquire: pairs with Start. If the word has changed meanwhile, it is about another
            // request or no longer late. If it is the same again, then so are the facts: that is
            // why it needs no generation.
            match self.word.compare_exchange_weak(
                was,
                was | HELD,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => was = now,
            }
        }
    }

    /// Lets go of a held request (Release). A request completed meanwhile is given back, and the
    /// caller ends it.
    #[must_use = "the caller that gets the request back ends it"]
    pub fn release(&self, how: Release) -> Option<N> {
        let next = match how {
            Release::Until(deadline) => deadline.nanos() & !FLAGS | IN_FLIGHT,
            Release::Told => IN_FLIGHT | TOLD,
        };
        let was = self.word.load(Ordering::Acquire);
        debug_assert!(was & HELD != 0, "released without being held");
        if was & LEFT == 0 {
            // Release: the side that finishes it from here on sees all writes of the handler.
            let let_go =
                self.word.compare_exchange(was, next, Ordering::Release, Ordering::Acquire);
            if let_go.is_ok() {
                return None;
            }
            // Only LEFT can have come.
        }
        let node = self.left.lock().take();
        // IDLE; as in `finish`, the tag is freed after this.
        self.word.store(0, Ordering::Relaxed);
        node
    }
}

impl<N> Default for TagState<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N> fmt::Debug for TagState<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        f.debug_struct("TagState")
            .field("in_flight", &(word & IN_FLIGHT != 0))
            .field("held", &(word & HELD != 0))
            .field("left", &(word & LEFT != 0))
            .field("told", &(word & TOLD != 0))
            .finish_non_exhaustive()
    }
}

// The guarantee that the requests in the driver have a timer: the queue's.
//
// ```text
// runner                          timer
// Start: the tag's word           Disarm: armed = false
// StartedFence (light)            DisarmFence (heavy)
// Look: armed? no: arm it         Look: is anything in flight? yes: arm it
// ```
//
// Both may look before either's store is seen: then the request is in flight and no timer runs.
// With a fence on both sides one of the two sees the other. Requests start all the time and the
// timer finds nothing now and then, so the runner's fence is the light one.

/// The record of whether the timer runs.
pub struct Watch<F: AsymmetricPolicy = Asymmetric> {
    /// A: true if a timer is set, or its function runs and has not yet decided that it is the last.
    armed: AtomicBool,
    fence: PhantomData<F>,
}

impl<F: AsymmetricPolicy> Watch<F> {
    /// Creates a record without a timer.
    pub fn new() -> Self {
        F::prepare();
        Self { armed: AtomicBool::new(false), fence: PhantomData }
    }

    /// Returns true if the caller has to set the timer, for a request that has just been started
    /// (its word is written).
    #[inline]
    #[must_use = "true means that the caller sets the timer"]
    pub fn started(&self) -> bool {
        F::light(); // StartedFence, pairs with DisarmFence
        !self.armed.load(Ordering::Relaxed) && self.arm()
    }

    /// Returns true if the timer wasn't armed: the caller sets it.
    #[must_use = "true means that the caller sets the timer"]
    pub fn arm(&self) -> bool {
        !self.armed.swap(true, Ordering::AcqRel)
    }

    /// Records that the timer's function has found nothing in flight. It looks **once more** after
    /// this, and arms the timer again if it finds something.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Release);
        F::heavy(); // DisarmFence, pairs with StartedFence
    }
}

impl<F: AsymmetricPolicy> Default for Watch<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: AsymmetricPolicy> fmt::Debug for Watch<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("armed", &self.armed.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: Stamp = Stamp::from_nanos(1_000);
    const LATE: Stamp = Stamp::from_nanos(1_000_000);

    #[test]
    fn a_request_in_time_or_outside_of_the_driver_is_not_held() {
        let tag = TagState::<u32>::new();
        assert!(!tag.hold(LATE), "the tag is free");
        tag.start(LATE);
        assert!(!tag.hold(EARLY));
        assert_eq!(tag.finish(7), Some(7));
        assert!(!tag.hold(LATE), "the tag is free again");
        tag.start(EARLY);
        tag.undo();
        assert!(!tag.hold(LATE), "the driver didn't take it");
    }

    #[test]
    fn a_request_that_completes_while_held_is_left_to_the_handler() {
        for how in [Release::Told, Release::Until(LATE)] {
            let tag = TagState::new();
            tag.start(EARLY);
            assert!(tag.hold(LATE));
            assert!(!tag.hold(LATE), "one handler at a time");
            assert_eq!(tag.finish(7), None);
            assert_eq!(tag.release(how), Some(7));
            assert_eq!(tag.deadline(), None);
        }
    }

    #[test]
    fn the_second_completion_of_a_tag_changes_nothing() {
        let tag = TagState::new();
        tag.start(EARLY);
        assert!(tag.hold(LATE));
        assert_eq!((tag.finish(7), tag.finish(8)), (None, Some(8)));
        assert_eq!(tag.release(Release::Told), Some(7));
    }

    #[test]
    fn a_request_with_more_time_is_late_again_and_a_reported_one_never() {
        let tag = TagState::new();
        tag.start(EARLY);
        assert!(tag.hold(LATE));
        let next = LATE.plus(std::time::Duration::from_millis(1));
        assert_eq!(tag.release(Release::Until(next)), None);
        assert!(!tag.hold(LATE) && tag.deadline().is_some());
        assert!(tag.hold(next));
        assert_eq!(tag.release(Release::Told), None);
        assert!(!tag.hold(next) && tag.deadline().is_none());
        assert_eq!(tag.finish(7), Some(7));
    }
}
