//! A parker's token as one futex word.

use std::time::Duration;

use crate::facade::atomic::{AtomicU32, Ordering};
use crate::facade::backend::clock;
use crate::facade::backend::system::futex;

const EMPTY: u32 = 0;
const TOKEN: u32 = 1;
/// `EMPTY - 1`, so that one `fetch_sub` takes the token or announces the sleeper.
const PARKED: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct ParkerToken {
    /// A: `EMPTY`, `TOKEN` or `PARKED`.
    state: AtomicU32,
}

impl ParkerToken {
    pub(crate) fn new() -> Self {
        ParkerToken { state: AtomicU32::new(EMPTY) }
    }

    pub(crate) fn park(&self, timeout: Option<Duration>) -> bool {
        // Acquire pairs with the Release swap in `unpark`.
        if self.state.fetch_sub(1, Ordering::Acquire) == TOKEN {
            return true;
        }
        let deadline = timeout.and_then(|t| clock::now().checked_add(t));
        loop {
            let left = match deadline {
                None => None,
                Some(end) => match end.checked_duration_since(clock::now()) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => {
                        // A token that arrived in the last moment is taken, not lost.
                        return self.state.swap(EMPTY, Ordering::Acquire) == TOKEN;
                    }
                },
            };
            // Every outcome (woken, value changed, interrupted, timed out) leads to the re-check.
            futex::wait(&self.state, PARKED, left);
            if self
                .state
                .compare_exchange(TOKEN, EMPTY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return true;
            }
        }
    }

    pub(crate) fn try_park(&self) -> bool {
        // A spinning thread only reads the line until there is something. Relaxed: the exchange
        // orders.
        self.state.load(Ordering::Relaxed) == TOKEN
            && (self.state)
                .compare_exchange(TOKEN, EMPTY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    pub(crate) fn unpark(&self) {
        // Release: what came before is seen by the thread that takes the token.
        if self.state.swap(TOKEN, Ordering::Release) == PARKED {
            futex::wake(&self.state, 1);
        }
    }

    /// Half of an `unpark`.
    #[cfg(test)]
    pub(crate) fn leave_silently(&self) {
        self.state.swap(TOKEN, Ordering::Release);
    }

    pub(crate) fn unpark_anyway(&self) {
        // Release as in `unpark`. A thread that is woken for nothing looks, and sleeps on.
        self.state.swap(TOKEN, Ordering::Release);
        futex::wake(&self.state, 1);
    }
}
