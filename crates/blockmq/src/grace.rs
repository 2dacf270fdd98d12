//! The grace period of a quiesce: wait until the runner that may have missed it has ended.

use corewise_sync::fence::AsymmetricPolicy;
use corewise_sync::{Condvar, Mutex};

use crate::run_state::RunState;

/// Where those wait who need one hardware queue's runner to end.
///
/// The lock is taken on the slow path only: by waiters, and by a runner that was told that there
/// are some.
#[derive(Debug, Default)]
pub struct Grace {
    /// L: is the lock; guards nothing but the sleep of those who wait.
    lock: Mutex<()>,
    /// L: waited on with `lock`.
    ended: Condvar,
}

impl Grace {
    /// Nobody waits.
    pub fn new() -> Self {
        Self { lock: Mutex::new(()), ended: Condvar::new() }
    }

    /// Blocks until the runner of this moment (if there is one) has ended. With the gate closed
    /// before, no dispatch is in progress afterwards and none starts.
    pub fn wait<F: AsymmetricPolicy>(&self, state: &RunState<F>) {
        if !state.is_running() {
            return;
        }
        let mut lock = self.lock.lock();
        // Announce, under the lock: the runner that sees it needs the lock to wake us, and gets it
        // only once we sleep.
        let Some(run) = state.announce_waiter() else { return };
        // A wake-up says only that some run has ended. It may be one from before: its runner wakes
        // after its end, and the next one may have begun meanwhile.
        while state.is_run(run) {
            lock = self.ended.wait(lock);
        }
    }

    /// The runner's duty where its end told it to wake. Takes a short lock.
    #[cold]
    pub fn wake(&self) {
        let _lock = self.lock.lock();
        self.ended.notify_all();
    }
}
