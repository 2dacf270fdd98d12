//! Where threads sleep until something is so.

use corewise_sync::{Condvar, Mutex};

/// Threads that sleep until what they look for is there: the kernel's wait queue, with its `wait_event` and
/// `wake_up_all`.
///
/// They look under the lock, and the teller takes the lock after having made it so. So a look that finds nothing comes
/// before that, and the looker is asleep when it is told.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    /// L: is the lock; guards nothing but the sleep.
    lock: Mutex<()>,
    /// L: waited on with `lock`.
    told: Condvar,
}

impl WaitQueue {
    /// Nobody waits.
    pub(crate) fn new() -> Self {
        Self { lock: Mutex::new(()), told: Condvar::new() }
    }

    /// Blocks until `look` finds something. It is asked at once, and each time that somebody tells.
    pub(crate) fn wait<R>(&self, mut look: impl FnMut() -> Option<R>) -> R {
        let mut lock = self.lock.lock();
        loop {
            if let Some(found) = look() {
                return found;
            }
            lock = self.told.wait(lock);
        }
    }

    /// Has everybody look once more. Takes a short lock.
    #[cold]
    pub(crate) fn tell(&self) {
        drop(self.lock.lock());
        // Not under the lock: a thread that wakes while this one has lost its CPU would sleep again, on the lock.
        self.told.notify_all();
    }
}
