//! A word on which a thread can sleep, with the system's part as a lock and a condition variable: to compare and
//! to fall asleep is one step for the waker, and nothing more is promised.

use std::time::Duration;

use crate::facade::atomic::{AtomicU32, Ordering};
use crate::facade::backend::deadline;
use crate::facade::lock::{Condvar, Mutex};
use crate::facade::thread;

/// As in `word/futex.rs`.
#[derive(Debug)]
pub(crate) struct FutexWord {
    /// A: whatever its owner says. The checker's too, so that it sees the owner's orderings.
    pub(crate) word: AtomicU32,
    /// L: is the lock; guards the step from the comparison to the sleep.
    gate: Mutex<()>,
    /// L: waited on with `gate`.
    woken: Condvar,
}

impl FutexWord {
    pub(crate) fn new(value: u32) -> Self {
        let word = AtomicU32::new(value);
        FutexWord { word, gate: Mutex::new(()), woken: Condvar::new() }
    }

    pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        let gate = self.gate.lock();
        // The system's own look.
        if self.word.load(Ordering::Relaxed) != expected {
            return;
        }
        let Some(end) = timeout.and_then(deadline::of) else {
            drop(self.woken.wait(gate));
            return;
        };
        drop(gate);
        thread::yield_now();
        if deadline::is_over(end) {
            deadline::passes(end);
        }
    }

    pub(crate) fn wake(&self) {
        let gate = self.gate.lock();
        drop(gate);
        self.woken.notify_all();
    }
}
