//! Who concludes a callback that may be completed later: whoever called it, or whoever completes
//! it.
//!
//! The protocol, its race and its proof stand in `README.md` beside this file; the steps named
//! there (Finish, Return, Panic) are the names used in the comments here.

use corewise_sync::Mutex;
use std::fmt;

/// The meeting of a call that returns and a result that is handed over, in any order, on any
/// threads. Exactly one side gets the result, and concludes.
///
/// No method blocks, except for the length of the other side's step.
pub struct Handoff<T>(
    /// L: is the lock; guards the phase.
    Mutex<Phase<T>>,
);

enum Phase<T> {
    /// The call has not returned, and there is no result.
    Called,
    /// There is a result; whoever called concludes when the call returns.
    Finished(T),
    /// The call has returned; whoever brings the result concludes.
    Returned,
    /// It is concluded, or nobody wants the result.
    Over,
}

impl<T> Default for Handoff<T> {
    fn default() -> Handoff<T> {
        Handoff::new()
    }
}

impl<T> Handoff<T> {
    /// For one call, which begins.
    pub fn new() -> Handoff<T> {
        Handoff(Mutex::new(Phase::Called))
    }

    /// Finish: hands the result over. `Some` gives it back where the call has returned: the finisher
    /// concludes. A result that nobody wants, since there is one or the call panicked, is dropped.
    pub fn finish(&self, result: T) -> Option<T> {
        let mut phase = self.0.lock();
        match *phase {
            Phase::Called => {
                *phase = Phase::Finished(result);
                None
            }
            Phase::Returned => {
                *phase = Phase::Over;
                Some(result)
            }
            Phase::Finished(_) | Phase::Over => {
                drop(phase); // The result is user data: it is dropped without the lock.
                None
            }
        }
    }

    /// Return: the call has returned. `Some` is its result, and the caller concludes; `None`: who
    /// finishes it later will.
    pub fn returned(&self) -> Option<T> {
        let mut phase = self.0.lock();
        match std::mem::replace(&mut *phase, Phase::Returned) {
            Phase::Finished(result) => {
                *phase = Phase::Over;
                Some(result)
            }
            Phase::Over => {
                *phase = Phase::Over;
                None
            }
            Phase::Called | Phase::Returned => None,
        }
    }

    /// Panic: the call ended by a panic, and the caller concludes in any case: with the result,
    /// where there is one. A later one is not wanted any more.
    pub fn panicked(&self) -> Option<T> {
        match std::mem::replace(&mut *self.0.lock(), Phase::Over) {
            Phase::Finished(result) => Some(result),
            Phase::Called | Phase::Returned | Phase::Over => None,
        }
    }

    /// Makes it fit for the next call, by who has it to himself.
    pub fn reset(&mut self) {
        *self.0.lock() = Phase::Called; // Not `get_mut`: the model checker's lock has none.
    }
}

impl<T> fmt::Debug for Handoff<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handoff").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_result_within_the_call_is_concluded_by_the_caller_and_a_later_one_by_the_finisher() {
        let mut call = Handoff::new();
        assert_eq!(call.finish(1), None);
        assert_eq!(call.returned(), Some(1));
        call.reset();
        assert_eq!(call.returned(), None);
        assert_eq!(call.finish(2), Some(2));
    }

    #[test]
    fn the_first_result_counts_and_a_second_one_is_dropped() {
        let call = Handoff::new();
        assert_eq!((call.finish(1), call.finish(2)), (None, None));
        assert_eq!(call.returned(), Some(1));
        assert_eq!(call.finish(3), None);
        assert_eq!(call.returned(), None, "it is concluded");
    }

    #[test]
    fn a_panic_is_concluded_by_the_caller_whoever_still_has_the_handle() {
        let call = Handoff::new();
        assert_eq!(call.panicked(), None);
        assert_eq!(call.finish(1), None, "nobody wants it any more");
        let call = Handoff::new();
        assert_eq!(call.finish(1), None);
        assert_eq!(call.panicked(), Some(1), "it came before the panic");
    }
}
