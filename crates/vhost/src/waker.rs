//! Wake-ups of a thread that sleeps in `epoll`: one word and an eventfd.
//!
//! The state is one word, and every change of it is a read-modify-write. So the two sides meet in
//! its modification order, and no fence is needed:
//!
//! | state | meaning | set by |
//! |---|---|---|
//! | `AWAKE` | the thread is about to look for work | thread (`Begin`) |
//! | `ASLEEP` | the thread has found none, and sleeps or will | thread (`Sleep`, from `AWAKE`) |
//! | `NOTIFIED` | work has come since the thread began to look | a waker (`Notify`) |
//!
//! A waker publishes its work first, then notifies. If the thread was `AWAKE`, its `Sleep` fails,
//! and it looks again. If it was `ASLEEP`, the waker writes to the eventfd. So a busy thread costs
//! its wakers no system call. A [`Bell`](corewise_sync::Bell) would not do: its thread looks at an
//! inbox once more before it sleeps, and a turn at the device has no inbox. Here the word itself
//! keeps a wake-up. Model: `tests/loom/waker.rs`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use corewise_sync::atomic::{AtomicU32, Ordering};
use rustix::event::{EventfdFlags, eventfd};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const NOTIFIED: u32 = 2;

/// The state word of a `ThreadWaker`, without the system.
#[derive(Debug)]
pub struct WakeState(
    /// A: AcqRel: what a waker publishes before `Notify` is seen after `Begin`.
    AtomicU32,
);

impl WakeState {
    /// Creates the word of a thread that is awake.
    #[allow(clippy::new_without_default, reason = "the default would say less")]
    pub fn new() -> Self {
        Self(AtomicU32::new(AWAKE))
    }

    /// Records that work is there (`Notify`). Returns true if the thread has to be woken.
    pub fn notify(&self) -> bool {
        self.0.swap(NOTIFIED, Ordering::AcqRel) == ASLEEP
    }

    /// Begins to look for work (`Begin`): what was published before is seen from now on.
    pub fn begin(&self) {
        self.0.swap(AWAKE, Ordering::AcqRel);
    }

    /// Ends the look for work (`Sleep`). Returns true if the thread may sleep.
    pub fn may_sleep(&self) -> bool {
        self.0.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Wakes one thread, which sleeps in `epoll` on this eventfd. The eventfd is never read: the thread
/// waits for its edges.
#[derive(Debug)]
pub(crate) struct ThreadWaker {
    state: WakeState,
    event: OwnedFd,
}

impl ThreadWaker {
    pub(crate) fn new() -> rustix::io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { state: WakeState::new(), event }))
    }

    /// Wakes the thread, if it sleeps. Any context.
    pub(crate) fn notify(&self) {
        if self.state.notify() {
            // Fails only if the counter is full, after 2^64 sleeps.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn begin(&self) {
        self.state.begin();
    }

    pub(crate) fn may_sleep(&self) -> bool {
        self.state.may_sleep()
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

impl AsFd for ThreadWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_sleeps_is_woken() {
        let state = WakeState::new();
        assert!(!state.notify(), "it is awake");
        assert!(!state.may_sleep(), "and looks again");
        state.begin();
        assert!(state.may_sleep());
        assert!(state.notify(), "it sleeps");
        assert!(!state.notify(), "once is enough");
    }
}
