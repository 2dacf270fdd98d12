//! Whose a spawned future is: nobody's, a worker's that polls it, or over.
//!
//! The item's own state word (`../task/state.rs`) keeps two polls apart. This one keeps a poll and an
//! abort apart: the thread that moves it out of `IDLE` owns the future, until he gives it back.
//!
//! | value | meaning | next |
//! |---|---|---|
//! | `IDLE` | it waits, queued or not | `begin`: `POLLING`; `stop`: `OVER` |
//! | `POLLING` | a worker polls it and owns it | `pause`: `IDLE`; `finish`: `OVER`; `stop`: `STOPPING` |
//! | `STOPPING` | as `POLLING`, and it is to end after this poll | `pause`, `finish`: `OVER` |
//! | `OVER` | it is dropped, or about to be by the thread that came here | none |
//!
//! Beside `IDLE` and `POLLING` there is a bit `CLOSED`: the queue takes no wake-up any more. `close`
//! sets it, once, and it stays. A poll that is queued already still takes place. So after the bit is
//! set *and* the future is `IDLE`, somebody has to look whether a poll is still to come, and to `stop`
//! it where none is: who set the bit, if he found `IDLE`; and each poller whose `pause` found the bit.
//! No fence is needed between the bit and the look. A poll clears the item's pending bit before it
//! begins. Where `close` comes after that poll's `pause`, it acquires what the poll did, and the look
//! sees the bit cleared, or set by a later wake-up. Where it comes before the poll's `begin`, that
//! poll's own `pause` finds the bit. A poll that is just about to begin (the pending bit is cleared, the
//! word is `IDLE` still) may be taken for none, and the future is cancelled.

use corewise_sync::atomic::{AtomicU32, Ordering};

const IDLE: u32 = 0;
const POLLING: u32 = 1;
const STOPPING: u32 = 2;
const OVER: u32 = 3;
/// A flag beside `IDLE` and `POLLING`.
const CLOSED: u32 = 4;

/// What a poll that didn't end the future leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    /// It waits.
    Waits,
    /// It waits, and its queue is closed: look whether a poll is still to come.
    Closed,
    /// It is over, and the caller's.
    Stopped,
}

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
        let taken = self.change(|now| (now & !CLOSED == IDLE).then_some(now - IDLE + POLLING));
        debug_assert!(matches!(taken, Ok(_) | Err(OVER)));
        taken.is_ok()
    }

    /// After a poll that didn't end it, by its owner: the future is given up, to be polled again,
    /// unless it is to end.
    pub(crate) fn pause(&self) -> Paused {
        match self.change(|now| (now & !CLOSED == POLLING).then_some(now - POLLING + IDLE)) {
            Ok(was) if was & CLOSED == 0 => Paused::Waits,
            Ok(_) => Paused::Closed,
            Err(_) => {
                self.finish();
                Paused::Stopped
            }
        }
    }

    /// Its queue is closed. True where it waits: the caller has to look whether a poll is still to
    /// come. Else who polls it does.
    pub(crate) fn close(&self) -> bool {
        self.change(|now| matches!(now, IDLE | POLLING).then_some(now | CLOSED)) == Ok(IDLE)
    }

    /// What it was, or what it is where that stays.
    fn change(&self, next: impl FnMut(u32) -> Option<u32>) -> Result<u32, u32> {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
    }

    /// By its owner: it is over.
    pub(crate) fn finish(&self) {
        self.word.store(OVER, Ordering::Release);
    }

    /// It is to end. True where the caller owns it now, and has to see to that; false where a
    /// worker polls it, which will, or where it is over.
    pub(crate) fn stop(&self) -> bool {
        let was = self.change(|now| match now & !CLOSED {
            IDLE => Some(OVER),
            POLLING => Some(STOPPING),
            _ => None,
        });
        was.is_ok_and(|was| was & !CLOSED == IDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_between_two_polls_takes_the_future_and_no_poll_follows() {
        let state = FutureState::new();
        assert!(state.begin() && state.pause() == Paused::Waits);
        assert!(state.stop(), "it belongs to the one who stopped it");
        assert!(state.is_over() && !state.begin() && !state.stop());
    }

    #[test]
    fn a_stop_during_a_poll_leaves_the_future_to_the_poller() {
        let state = FutureState::new();
        assert!(state.begin());
        assert!(!state.stop() && !state.stop());
        assert!(!state.is_over());
        assert_eq!(state.pause(), Paused::Stopped, "it isn't polled again");
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

    #[test]
    fn closing_a_waiting_future_obliges_the_closer_to_look_and_else_its_poller() {
        let waits = FutureState::new();
        assert!(waits.close() && !waits.close());
        assert!(waits.begin(), "a poll that is queued already takes place");
        assert!(!waits.is_over());
        assert_eq!(waits.pause(), Paused::Closed);
        assert!(waits.stop() && waits.is_over());
        let polled = FutureState::new();
        assert!(polled.begin() && !polled.close());
        assert_eq!(polled.pause(), Paused::Closed);
        assert!(polled.begin() && !polled.stop());
        assert_eq!(polled.pause(), Paused::Stopped);
        assert!(polled.is_over() && !polled.close() && polled.is_over());
    }
}
