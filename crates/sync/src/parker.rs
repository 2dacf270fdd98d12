//! A one-token parking spot for one thread.
//!
//! [`Unparker::unpark`] leaves a token; [`Parker::park`] takes it, sleeping until there is one. The
//! unparker's earlier writes are visible to the parked thread afterwards. Unlike with
//! `std::thread::park`, only an owner of the parker or of one of its [`Unparker`]s can leave a
//! token, and it can be model-checked.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use crate::facade::backend::ParkerToken as Inner;

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
    /// Creates a parker without a token. Allocates.
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

    /// Parks like [`Parker::park`], for at most `timeout`. Returns true if it took a token. (Under
    /// loom there is no clock: it never times out. Under shuttle it may at any moment, and then the
    /// [clock](crate::time) moves on to that point.)
    pub fn park_timeout(&self, timeout: Duration) -> bool {
        self.inner.park(Some(timeout))
    }

    /// Takes the token if there is one, without sleeping. Returns true if it did.
    pub fn try_park(&self) -> bool {
        self.inner.try_park()
    }

    /// Leaves the token, as its [`Unparker`] does.
    pub fn unpark(&self) {
        self.inner.unpark();
    }

    /// Returns a handle that wakes this parker.
    pub fn unparker(&self) -> Unparker {
        Unparker { inner: Arc::clone(&self.inner) }
    }

    /// Returns a [`Waker`] that wakes this parker. Allocates nothing.
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.inner))
    }
}

impl Unparker {
    /// Leaves the token, and wakes the thread if it is parked. Never blocks; any context.
    pub fn unpark(&self) {
        self.inner.unpark();
    }

    /// Leaves the token like [`Unparker::unpark`], and wakes the thread even if there was a token
    /// already. It is for a caller that suspects that the first unparker was preempted before it
    /// woke the thread. Always costs a system call.
    pub fn unpark_anyway(&self) {
        self.inner.unpark_anyway();
    }

    /// Returns a [`Waker`] that wakes the parker. Allocates nothing.
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.inner))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facade::sys::{self, RunState, Tid};

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

    /// Tests an unparker that is preempted between leaving the token and waking the thread.
    #[test]
    #[cfg_attr(miri, ignore = "nobody knows that a thread sleeps")]
    fn a_thread_that_sleeps_although_there_is_a_token_is_woken_anyway() {
        if !sys::KERNEL_THREADS {
            // Nothing shows that a thread sleeps.
            return;
        }
        let parker = Parker::new();
        let unparker = parker.unparker();
        let (tell, told) = std::sync::mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            tell.send(Tid::current()).unwrap();
            parker.park();
        });
        let thread = told.recv().unwrap();
        while sys::run_state(thread) != Some(RunState::Asleep) {
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
        let value = Arc::new(crate::facade::atomic::AtomicU32::new(0));
        let seen = Arc::clone(&value);
        let waiter = std::thread::spawn(move || {
            parker.park();
            seen.load(crate::facade::atomic::Ordering::Relaxed)
        });
        value.store(7, crate::facade::atomic::Ordering::Relaxed);
        unparker.unpark();
        assert_eq!(waiter.join().unwrap(), 7);
    }
}
