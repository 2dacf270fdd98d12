//! Whose a spawned future is: nobody's, a worker's that polls it, or over.
//!
//! The item's own state word (`work_state.rs`) keeps two polls apart. This one keeps a poll and an
//! abort apart: whoever moves it out of `IDLE` owns the future, until he gives it back.
//!
//! | value | meaning | next |
//! |---|---|---|
//! | `IDLE` | it waits, queued or not | `begin`: `POLLING`; `stop`: `OVER` |
//! | `POLLING` | a worker polls it and owns it | `pause`: `IDLE`; `finish`: `OVER`; `stop`: `STOPPING` |
//! | `STOPPING` | as `POLLING`, and it is to end after this poll | `pause`, `finish`: `OVER` |
//! | `OVER` | it is dropped, or about to be by who came here | none |

use corewise_sync::atomic::{AtomicU32, Ordering};

const IDLE: u32 = 0;
const POLLING: u32 = 1;
const STOPPING: u32 = 2;
const OVER: u32 = 3;

/// The word.
#[derive(Debug)]
pub(crate) struct FutureState {
    /// A: one of the values above. Each change that gives the future up is a release, each that
    /// takes it an acquire.
    word: AtomicU32,
}

impl FutureState {
    pub(crate) fn new() -> Self {
        FutureState { word: AtomicU32::new(IDLE) }
    }

    /// Whether it is over (a moment ago).
    pub(crate) fn is_over(&self) -> bool {
        self.word.load(Ordering::Relaxed) == OVER
    }

    /// Before a poll: true where the caller owns the future now. Two polls at once don't happen: an
    /// item never runs on two workers.
    pub(crate) fn begin(&self) -> bool {
        let taken = self.word.compare_exchange(IDLE, POLLING, Ordering::AcqRel, Ordering::Acquire);
        debug_assert!(matches!(taken, Ok(_) | Err(OVER)));
        taken.is_ok()
    }

    /// After a poll that didn't end it, by its owner: true where the future is given up, to be
    /// polled again. False where it is to end: the caller owns it still, and it is over.
    pub(crate) fn pause(&self) -> bool {
        let paused =
            self.word.compare_exchange(POLLING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !paused {
            self.finish();
        }
        paused
    }

    /// By its owner: it is over.
    pub(crate) fn finish(&self) {
        self.word.store(OVER, Ordering::Release);
    }

    /// It is to end. True where the caller owns it now, and has to see to that; false where a
    /// worker polls it, who will, or where it is over.
    pub(crate) fn stop(&self) -> bool {
        let mut now = self.word.load(Ordering::Relaxed);
        loop {
            let next = match now {
                IDLE => OVER,
                POLLING => STOPPING,
                _ => return false,
            };
            match self.word.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return now == IDLE,
                Err(seen) => now = seen,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stop_between_two_polls_takes_the_future_and_no_poll_follows() {
        let state = FutureState::new();
        assert!(state.begin() && state.pause());
        assert!(state.stop(), "it belongs to the one who stopped it");
        assert!(state.is_over() && !state.begin() && !state.stop());
    }

    #[test]
    fn a_stop_during_a_poll_leaves_the_future_to_the_poller() {
        let state = FutureState::new();
        assert!(state.begin());
        assert!(!state.stop() && !state.stop());
        assert!(!state.is_over());
        assert!(!state.pause(), "it isn't polled again");
        assert!(state.is_over());
    }

    #[test]
    fn a_poll_that_ends_it_wins_over_a_stop() {
        let state = FutureState::new();
        assert!(state.begin());
        assert!(!state.stop());
        state.finish();
        assert!(state.is_over() && !state.stop());
    }
}
