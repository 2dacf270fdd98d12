//! A one-token parking spot for one thread.
//!
//! [`Unparker::unpark`] leaves a token; [`Parker::park`] takes it, sleeping until there is one.
//! What the unparker wrote before is visible to the parked thread after. It differs from
//! `std::thread::park` in that nobody but who has it or one of its [`Unparker`]s can leave a token, and
//! that it can be model-checked.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// The owning side: parks. Belongs to one thread at a time.
#[derive(Debug)]
pub struct Parker {
    inner: Arc<Inner>,
}

/// The waking side. Cheap to clone; outlives its parker harmlessly.
#[derive(Debug, Clone)]
pub struct Unparker {
    inner: Arc<Inner>,
}

impl Default for Parker {
    fn default() -> Self {
        Self::new()
    }
}

impl Parker {
    /// A parker without a token. Allocates.
    pub fn new() -> Self {
        Parker { inner: Arc::new(Inner::new()) }
    }

    /// Sleeps until there is a token, and takes it. A token left earlier makes it return at once.
    ///
    /// This is the bare mechanism: it doesn't call [`might_block`](crate::context::might_block) and
    /// doesn't tell the worker pool. Waits inside tasks use [`Completion`](crate::Completion).
    pub fn park(&self) {
        self.inner.park(None);
    }

    /// As [`Parker::park`], for at most `timeout`: true where a token was taken. (Under loom there
    /// is no clock: it never times out. Under shuttle it may at any moment, and then the
    /// [clock](crate::time) moves on to that point.)
    pub fn park_timeout(&self, timeout: Duration) -> bool {
        self.inner.park(Some(timeout))
    }

    /// Takes the token if there is one, without sleeping: true where there was.
    pub fn try_park(&self) -> bool {
        self.inner.try_park()
    }

    /// Leaves the token, as its [`Unparker`] does.
    pub fn unpark(&self) {
        self.inner.unpark();
    }

    /// A handle that wakes this parker.
    pub fn unparker(&self) -> Unparker {
        Unparker { inner: Arc::clone(&self.inner) }
    }

    /// A [`Waker`] that wakes this parker. Allocates nothing.
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.inner))
    }
}

impl Unparker {
    /// Leaves the token, and wakes the thread if it is parked. Never blocks; any context.
    pub fn unpark(&self) {
        self.inner.unpark();
    }

    /// As [`Unparker::unpark`], also where a token is there already: for who suspects that whoever left it was
    /// preempted before it woke the thread. Costs a system call in any case.
    pub fn unpark_anyway(&self) {
        self.inner.unpark_anyway();
    }
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

#[cfg(not(any(loom, shuttle)))]
use futex::Inner;
#[cfg(any(loom, shuttle))]
use model::Inner;

#[cfg(not(any(loom, shuttle)))]
mod futex {
    //! The token as one futex word.

    use std::time::{Duration, Instant};

    use rustix::thread::futex;

    use crate::atomic::{AtomicU32, Ordering};

    const EMPTY: u32 = 0;
    const TOKEN: u32 = 1;
    /// `EMPTY - 1`, so that one `fetch_sub` takes the token or announces the sleeper.
    const PARKED: u32 = u32::MAX;

    #[derive(Debug)]
    pub(super) struct Inner {
        /// A: `EMPTY`, `TOKEN` or `PARKED`.
        state: AtomicU32,
    }

    impl Inner {
        pub(super) fn new() -> Self {
            Inner { state: AtomicU32::new(EMPTY) }
        }

        pub(super) fn park(&self, timeout: Option<Duration>) -> bool {
            // Acquire pairs with the Release swap in `unpark`.
            if self.state.fetch_sub(1, Ordering::Acquire) == TOKEN {
                return true;
            }
            let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
            loop {
                let left = match deadline {
                    None => None,
                    Some(end) => match end.checked_duration_since(Instant::now()) {
                        Some(left) if !left.is_zero() => Some(left),
                        _ => {
                            // A token that arrived in the last moment is taken, not lost.
                            return self.state.swap(EMPTY, Ordering::Acquire) == TOKEN;
                        }
                    },
                };
                let spec = left.map(|left| futex::Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(left.subsec_nanos()),
                });
                // Every outcome (woken, value changed, interrupted, timed out) leads to the
                // re-check.
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, PARKED, spec.as_ref());
                if self
                    .state
                    .compare_exchange(TOKEN, EMPTY, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return true;
                }
            }
        }

        pub(super) fn try_park(&self) -> bool {
            // Who spins on it only reads the line until there is something. Relaxed: the exchange
            // orders.
            self.state.load(Ordering::Relaxed) == TOKEN
                && (self.state)
                    .compare_exchange(TOKEN, EMPTY, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
        }

        pub(super) fn unpark(&self) {
            // Release: what came before is seen by the thread that takes the token.
            if self.state.swap(TOKEN, Ordering::Release) == PARKED {
                let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
            }
        }

        /// Half of an `unpark`.
        #[cfg(test)]
        pub(super) fn leave_silently(&self) {
            self.state.swap(TOKEN, Ordering::Release);
        }

        pub(super) fn unpark_anyway(&self) {
            // Release as in `unpark`. A thread that is woken for nothing looks, and sleeps on.
            self.state.swap(TOKEN, Ordering::Release);
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(any(loom, shuttle))]
mod model {
    //! The token as a flag under a lock: what a model checker can follow.

    use std::time::Duration;

    use crate::{Condvar, Mutex};

    #[derive(Debug)]
    pub(super) struct Inner {
        /// L: is the lock; guards the token.
        token: Mutex<bool>,
        /// L: waited on with `token`.
        arrived: Condvar,
    }

    impl Inner {
        pub(super) fn new() -> Self {
            Inner { token: Mutex::new(false), arrived: Condvar::new() }
        }

        pub(super) fn park(&self, timeout: Option<Duration>) -> bool {
            match timeout.and_then(|timeout| crate::time::now().checked_add(timeout)) {
                #[cfg(shuttle)]
                Some(end) => self.poll_until(end),
                _ => self.wait(),
            }
        }

        pub(super) fn try_park(&self) -> bool {
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
        #[cfg(shuttle)]
        fn poll_until(&self, end: std::time::Instant) -> bool {
            loop {
                let over = end <= crate::time::now() || crate::model::choose(4) == 0;
                if std::mem::take(&mut *self.token.lock()) {
                    return true;
                }
                if over {
                    crate::time::move_on(end);
                    return false;
                }
                crate::thread::yield_now();
            }
        }

        pub(super) fn unpark(&self) {
            *self.token.lock() = true;
            self.arrived.notify_one();
        }

        /// In a model nobody is preempted for good between the two.
        pub(super) fn unpark_anyway(&self) {
            self.unpark();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_token_left_before_is_taken_without_sleeping() {
        let parker = Parker::new();
        parker.unparker().unpark();
        parker.unparker().unpark();
        parker.park();
        assert!(!parker.park_timeout(Duration::from_millis(1)), "two tokens count as one");
        assert!(!parker.try_park());
        parker.unparker().unpark();
        assert!(parker.try_park());
        assert!(!parker.try_park());
    }

    /// Whoever leaves the token may be preempted before it wakes the thread.
    #[test]
    #[cfg(not(miri))] // it looks at the thread's state in /proc
    fn a_thread_that_sleeps_although_there_is_a_token_is_woken_anyway() {
        let parker = Parker::new();
        let unparker = parker.unparker();
        let (tell, told) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            parker.park();
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        unparker.inner.leave_silently();
        unparker.unpark();
        unparker.unpark_anyway();
        sleeper.join().unwrap();
    }

    #[test]
    fn a_parked_thread_is_woken_and_sees_what_was_written() {
        let parker = Parker::new();
        let unparker = parker.unparker();
        let value = Arc::new(crate::atomic::AtomicU32::new(0));
        let seen = Arc::clone(&value);
        let waiter = std::thread::spawn(move || {
            parker.park();
            seen.load(crate::atomic::Ordering::Relaxed)
        });
        value.store(7, crate::atomic::Ordering::Relaxed);
        unparker.unpark();
        assert_eq!(waiter.join().unwrap(), 7);
    }
}
