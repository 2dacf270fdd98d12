//! The conclusion of a callback that may be completed later: its caller concludes, or the thread
//! that completes it.
//!
//! The protocol, its race and its proof stand in `README.md` beside this file; the steps named
//! there (Finish, Return, Panic) are the names used in the comments here.

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU8, Ordering};
use std::fmt;

/// The call has not returned, and there is no result.
const CALLED: u8 = 0;
/// The callback is finished, with nothing to report; the caller concludes when the call returns.
const FINISHED: u8 = 1;
/// The callback is finished like [`FINISHED`], but with a result.
const TOLD: u8 = 2;
/// The call has returned; the thread that brings the result concludes.
const RETURNED: u8 = 3;
/// The callback is concluded, or its result isn't wanted.
const OVER: u8 = 4;

/// The meeting of a call that returns and a result that is handed over, in any order, on any
/// threads. Exactly one side gets the result, and concludes. If there is nothing to report (`None`,
/// a plain success, say), that costs one exchange on each side.
///
/// No method blocks, except for the length of the other side's step.
pub struct Handoff<T> {
    /// A: the phase; each step is one exchange on it.
    phase: AtomicU8,
    /// L: is the lock; guards the result, from before `TOLD` until it is taken.
    result: Mutex<Option<T>>,
}

impl<T> Default for Handoff<T> {
    fn default() -> Handoff<T> {
        Handoff::new()
    }
}

impl<T> Handoff<T> {
    /// Creates a handoff for one call, which begins.
    pub fn new() -> Handoff<T> {
        Handoff { phase: AtomicU8::new(CALLED), result: Mutex::new(None) }
    }

    /// Hands the result over (step Finish). Returns `Some` with the result if the call has
    /// returned: the finisher concludes. A result that isn't wanted, since there is one or the call
    /// panicked, is dropped.
    pub fn finish(&self, result: Option<T>) -> Option<Option<T>> {
        let phase = match result {
            None => FINISHED,
            Some(result) => {
                // Before the exchange: a thread that sees `TOLD` finds it. A result that is there
                // already came first, and counts.
                self.result.lock().get_or_insert(result);
                TOLD
            }
        };
        // Release: what was done before the end comes before what its conclusion releases. Acquire
        // if the call has returned. Partners: `returned`, `panicked`.
        let before = self.change(CALLED, phase).or_else(|before| match before {
            RETURNED => self.change(RETURNED, OVER).and(Err(RETURNED)),
            other => Err(other),
        });
        match before {
            Err(RETURNED) => Some(self.taken(phase)),
            _ => None,
        }
    }

    /// Records that the call has returned (step Return). Returns `Some` with its result if the
    /// caller concludes, `None` if the thread that finishes later does.
    pub fn returned(&self) -> Option<Option<T>> {
        match self.change(CALLED, RETURNED) {
            Err(phase @ (FINISHED | TOLD)) => {
                self.phase.store(OVER, Ordering::Relaxed); // Nobody else changes it any more.
                Some(self.taken(phase))
            }
            _ => None,
        }
    }

    /// Records that the call ended by a panic (step Panic). The caller concludes in any case, with
    /// the result if there is one. A later result is not wanted any more.
    pub fn panicked(&self) -> Option<Option<T>> {
        match self.phase.swap(OVER, Ordering::AcqRel) {
            phase @ (FINISHED | TOLD) => Some(self.taken(phase)),
            _ => None,
        }
    }

    /// Prepares the handoff for the next call; called by its only owner.
    pub fn reset(&mut self) {
        self.phase.store(CALLED, Ordering::Relaxed);
        // A result that wasn't wanted.
        drop(self.result.get_mut().take());
    }

    fn change(&self, from: u8, to: u8) -> Result<u8, u8> {
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Takes the result, if there is one.
    fn taken(&self, phase: u8) -> Option<T> {
        if phase == TOLD { self.result.lock().take() } else { None }
    }
}

impl<T> fmt::Debug for Handoff<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handoff").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_within_the_call_is_concluded_by_the_caller_and_a_later_one_by_the_finisher() {
        for result in [None, Some(1)] {
            let mut call = Handoff::new();
            assert_eq!(call.finish(result), None);
            assert_eq!(call.returned(), Some(result));
            call.reset();
            assert_eq!(call.returned(), None);
            assert_eq!(call.finish(result), Some(result));
        }
    }

    #[test]
    fn the_first_result_counts_and_a_second_one_is_dropped() {
        let call = Handoff::new();
        assert_eq!((call.finish(Some(1)), call.finish(Some(2))), (None, None));
        assert_eq!(call.returned(), Some(Some(1)));
        assert_eq!(call.finish(None), None);
        assert_eq!(call.returned(), None, "it is concluded");
    }

    #[test]
    fn a_panic_is_concluded_by_the_caller_whoever_still_has_the_handle() {
        let call = Handoff::new();
        assert_eq!(call.panicked(), None);
        assert_eq!(call.finish(Some(1)), None, "nobody wants it any more");
        let call = Handoff::new();
        assert_eq!(call.finish(Some(1)), None);
        assert_eq!(call.panicked(), Some(Some(1)), "it came before the panic");
    }
}
