//! Waiting and ordering of threads that can sleep on a word, in a system that has a barrier for all
//! of them.

pub(crate) mod pair;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::facade::atomic::{AtomicU32, Ordering};
use crate::facade::backend::clock;
use crate::facade::backend::system::futex;

/// The spin lock of product code: [`Spin`](crate::spin::Spin). Models take the facade's mutex
/// instead: spinning costs them many more schedules, and shows nothing about the users of the lock.
pub type SpinLock<T> = crate::facade::spin::Spin<T>;
/// Guard of a [`SpinLock`].
pub type SpinLockGuard<'a, T> = crate::facade::spin::SpinGuard<'a, T>;

/// A word on which a thread can sleep. A thread that changes the word so that a sleeper should
/// check it again calls [`FutexWord::wake`] afterwards.
#[derive(Debug)]
pub(crate) struct FutexWord {
    /// A: as its owner says.
    pub(crate) word: AtomicU32,
}

impl FutexWord {
    #[inline]
    pub(crate) fn new(value: u32) -> Self {
        FutexWord { word: AtomicU32::new(value) }
    }

    /// Sleeps if the word is `expected`, until it is woken or `timeout` is over. May return at any
    /// moment without a reason: the caller checks again.
    #[inline]
    pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        futex::wait(&self.word, expected, timeout);
    }

    /// Wakes the sleepers on the word. It may be freed or reused by now: then this wakes no thread,
    /// or one that checks again.
    #[inline]
    pub(crate) fn wake(&self) {
        futex::wake(&self.word, i32::MAX as u32);
    }
}

const EMPTY: u32 = 0;
const TOKEN: u32 = 1;
/// `EMPTY - 1`, so that one `fetch_sub` takes the token or announces the sleeper.
const PARKED: u32 = u32::MAX;

/// A parker's token as one futex word.
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
        // A spinning thread only reads the line until there is a token. Relaxed: the exchange
        // orders.
        self.state.load(Ordering::Relaxed) == TOKEN
            && (self.state)
                .compare_exchange(TOKEN, EMPTY, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    pub(crate) fn unpark(&self) {
        // Release: earlier writes are seen by the thread that takes the token.
        if self.state.swap(TOKEN, Ordering::Release) == PARKED {
            futex::wake(&self.state, 1);
        }
    }

    /// Leaves the token without a wake-up: half of an `unpark`.
    #[cfg(test)]
    pub(crate) fn leave_silently(&self) {
        self.state.swap(TOKEN, Ordering::Release);
    }

    pub(crate) fn unpark_anyway(&self) {
        // Release as in `unpark`. A thread that is woken for nothing checks, and continues to
        // sleep.
        self.state.swap(TOKEN, Ordering::Release);
        futex::wake(&self.state, 1);
    }
}

/// A shared value, over hazard pointers, with many readers, that is replaced as a whole now and
/// then. Reading it writes to no line that other CPUs use.
pub struct Swap<T> {
    value: arc_swap::ArcSwap<T>,
}

impl<T> Swap<T> {
    /// Creates a cell with this value.
    pub fn new(value: Arc<T>) -> Self {
        Swap { value: arc_swap::ArcSwap::new(value) }
    }

    /// Returns the present value. A writer that replaces it doesn't wait for readers: the value
    /// lives for as long as it is read. Never blocks.
    #[inline]
    pub fn load(&self) -> impl Deref<Target = Arc<T>> {
        self.value.load()
    }

    /// Replaces the value; later readers see the new one.
    pub fn store(&self, value: Arc<T>) {
        self.value.store(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lives_for_as_long_as_it_is_read() {
        let first = Arc::new(1);
        let swap = Swap::new(Arc::clone(&first));
        let reading = swap.load();
        swap.store(Arc::new(2));
        assert_eq!((**reading, **swap.load()), (1, 2));
        drop(reading);
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
