//! A word on which a thread can sleep for as long as it has a certain value.

#[cfg(not(any(loom, shuttle)))]
use std::time::Duration;

use crate::atomic::AtomicU32;

/// The word. Whoever changes it so that a sleeper should look again calls [`Futex::wake`] after.
#[derive(Debug)]
pub(crate) struct Futex {
    /// A: whatever its owner says. Under the models too, so that they see the owner's orderings.
    pub(crate) word: AtomicU32,
    #[cfg(any(loom, shuttle))]
    queue: model::Queue,
}

#[cfg(not(any(loom, shuttle)))]
impl Futex {
    #[inline]
    pub(crate) fn new(value: u32) -> Self {
        Futex { word: AtomicU32::new(value) }
    }

    /// Sleeps if the word is `expected`, until it is woken or `timeout` is over. May return at any
    /// moment without a reason: the caller looks again.
    pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        use rustix::thread::futex;
        let spec = timeout.map(|left| futex::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        // Every outcome (woken, another value, interrupted, timed out) leads to another look.
        let _ = futex::wait(&self.word, futex::Flags::PRIVATE, expected, spec.as_ref());
    }

    /// Wakes whoever sleeps on it. That the word may be gone or used for something else by now does
    /// no harm: then this wakes nobody, or somebody who looks again.
    pub(crate) fn wake(&self) {
        use rustix::thread::futex;
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

#[cfg(any(loom, shuttle))]
mod model {
    //! The system's part as a lock and a condition variable: to compare and to fall asleep is one step
    //! for who wakes, and nothing more is promised.

    use std::time::Duration;

    use super::Futex;
    use crate::atomic::{AtomicU32, Ordering};
    use crate::{Condvar, Mutex};

    #[derive(Debug)]
    pub(super) struct Queue {
        /// L: is the lock; guards the step from the comparison to the sleep.
        gate: Mutex<()>,
        /// L: waited on with `gate`.
        woken: Condvar,
    }

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            let queue = Queue { gate: Mutex::new(()), woken: Condvar::new() };
            Futex { word: AtomicU32::new(value), queue }
        }

        pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
            let gate = self.queue.gate.lock();
            // The system's own look.
            if self.word.load(Ordering::Relaxed) != expected {
                return;
            }
            match timeout {
                // Under shuttle the time may be over at any moment.
                #[cfg(shuttle)]
                Some(timeout) => {
                    drop(gate);
                    crate::thread::yield_now();
                    if crate::model::choose(4) == 0
                        && let Some(end) = crate::time::now().checked_add(timeout)
                    {
                        crate::time::move_on(end);
                    }
                }
                _ => drop(self.queue.woken.wait(gate)),
            }
        }

        pub(crate) fn wake(&self) {
            let gate = self.queue.gate.lock();
            drop(gate);
            self.queue.woken.notify_all();
        }
    }
}
