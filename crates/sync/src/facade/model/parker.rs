//! A parker's token as a flag under a lock: what a model checker can follow.

use std::time::{Duration, Instant};

use crate::facade::backend::deadline;
use crate::facade::lock::{Condvar, Mutex};

#[derive(Debug)]
pub(crate) struct ParkerToken {
    /// L: is the lock; guards the token.
    token: Mutex<bool>,
    /// L: waited on with `token`.
    arrived: Condvar,
}

impl ParkerToken {
    pub(crate) fn new() -> Self {
        ParkerToken { token: Mutex::new(false), arrived: Condvar::new() }
    }

    pub(crate) fn park(&self, timeout: Option<Duration>) -> bool {
        match timeout.and_then(deadline::of) {
            Some(end) => self.poll_until(end),
            None => self.wait(),
        }
    }

    pub(crate) fn try_park(&self) -> bool {
        std::mem::take(&mut *self.token.lock())
    }

    fn wait(&self) -> bool {
        let mut token = self.token.lock();
        while !*token {
            token = self.arrived.wait(token);
        }
        *token = false;
        true
    }

    /// Looks a few times, others run between, and then the time is over.
    fn poll_until(&self, end: Instant) -> bool {
        loop {
            let over = deadline::is_over(end);
            if std::mem::take(&mut *self.token.lock()) {
                return true;
            }
            if over {
                deadline::passes(end);
                return false;
            }
            crate::facade::thread::yield_now();
        }
    }

    pub(crate) fn unpark(&self) {
        *self.token.lock() = true;
        self.arrived.notify_one();
    }

    /// In a model nobody is preempted for good between the two.
    pub(crate) fn unpark_anyway(&self) {
        self.unpark();
    }
}
