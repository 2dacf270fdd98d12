//! The word of the flush right: free, held, or held with a note that more has arrived.

use std::fmt;

use corewise_sync::atomic::{AtomicU32, Ordering};

/// Nobody sends.
pub(crate) const FREE: u32 = 0;
/// Somebody sends, and has taken everything that was posted before its last BeginRound.
const HELD: u32 = 1;
/// Somebody sends (or is about to begin), and something was posted since: it has to take once more.
/// Set by Claim, cleared by BeginRound.
const AGAIN: u32 = 2;

/// The flush right of one connection. See `README.md` beside this file for the steps named here.
pub struct FlushRight {
    /// A: `FREE`, `HELD` or `AGAIN`. Changed by read-modify-writes only, so all steps stand in one
    /// order.
    pub(crate) word: AtomicU32,
}

impl FlushRight {
    /// A free right.
    pub fn new() -> Self {
        FlushRight { word: AtomicU32::new(FREE) }
    }

    /// Claim, after a push: true where the caller now holds the right; otherwise the holder has
    /// been told to take once more.
    #[must_use]
    pub fn claim(&self) -> bool {
        // Release: the push before is seen by the holder whose BeginRound reads this. Acquire:
        // where the word was FREE, what the last holder did to the sink is seen.
        self.word.swap(AGAIN, Ordering::AcqRel) == FREE
    }

    /// Takes the right where it is free, without leaving a note otherwise.
    #[must_use]
    pub fn try_claim(&self) -> bool {
        // Acquire pairs with the Release of the last holder: its use of the sink is seen.
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// BeginRound, by the holder, right before it takes from the inbox.
    pub fn begin_round(&self) {
        // Acquire pairs with the Release of the Claim whose note this clears: the take that follows
        // sees that push. A plain store would clear the note without seeing the push, and
        // strand it.
        let was = self.word.swap(HELD, Ordering::Acquire);
        debug_assert_ne!(was, FREE, "a round begins with the right held");
    }

    /// Release, by the holder, after everything taken was sent: false where a note arrived, and the
    /// holder has to go on.
    #[must_use]
    fn release(&self) -> bool {
        // Release: the next holder sees the sink as this one left it.
        self.word.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

impl Default for FlushRight {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FlushRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.word.load(Ordering::Relaxed) {
            FREE => "free",
            HELD => "held",
            _ => "held, more arrived",
        })
    }
}

/// How the holder lets go of the right. Those are all: one that lets go and says that it hasn't would let two
/// threads at the sink.
///
/// ```compile_fail,E0277
/// use corewise_nbd::model::{FlushRight, ReleaseChecked, ReleasePolicy};
///
/// struct LetsGoAndDeniesIt;
///
/// impl ReleasePolicy for LetsGoAndDeniesIt {
///     fn release(right: &FlushRight) -> bool {
///         ReleaseChecked::release(right);
///         false
///     }
/// }
/// ```
pub trait ReleasePolicy: sealed::Sealed + Send + Sync + 'static {
    /// Release: true where the right is free now.
    fn release(right: &FlushRight) -> bool;
}

/// Lets go only where nothing was posted since the last take: what product code uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReleaseChecked;

pub(crate) mod sealed {
    /// Keeps others from being made.
    pub trait Sealed {}
}

impl sealed::Sealed for ReleaseChecked {}

impl ReleasePolicy for ReleaseChecked {
    fn release(right: &FlushRight) -> bool {
        right.release()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_left_while_the_right_is_held_makes_the_release_fail_once() {
        let right = FlushRight::new();
        assert!(right.claim(), "free: the first claim gets it");
        right.begin_round();
        assert!(!right.claim(), "held: the second leaves a note");
        assert!(!right.release(), "the note keeps the holder");
        right.begin_round();
        assert!(right.release());
        assert!(right.try_claim());
        assert!(!right.try_claim(), "trying leaves no note");
        right.begin_round();
        assert!(right.release());
    }
}
