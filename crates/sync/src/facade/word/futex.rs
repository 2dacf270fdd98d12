//! A word on which a thread can sleep, as the system has it.

use std::time::Duration;

use crate::facade::atomic::AtomicU32;
use crate::facade::backend::system::futex;

/// The word. A thread that changes it so that a sleeper should look again calls [`FutexWord::wake`] after.
#[derive(Debug)]
pub(crate) struct FutexWord {
    /// A: whatever its owner says.
    pub(crate) word: AtomicU32,
}

impl FutexWord {
    #[inline]
    pub(crate) fn new(value: u32) -> Self {
        FutexWord { word: AtomicU32::new(value) }
    }

    /// Sleeps if the word is `expected`, until it is woken or `timeout` is over. May return at any
    /// moment without a reason: the caller looks again.
    #[inline]
    pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        futex::wait(&self.word, expected, timeout);
    }

    /// Wakes the sleepers on it. That the word may be gone or used for something else by now does
    /// no harm: then this wakes nobody, or somebody who looks again.
    #[inline]
    pub(crate) fn wake(&self) {
        futex::wake(&self.word, i32::MAX as u32);
    }
}
