//! The grace period of a quiesce: wait until the runner that may have missed it has ended.

use corewise_sync::fence::FencePolicy;
use corewise_sync::{Condvar, Mutex};

use crate::run_state::RunState;

/// Where those wait who need one hardware queue's runner to end.
///
/// The lock is taken on the slow path only: by waiters, and by a runner that was told that there
/// are some.
#[derive(Debug, Default)]
pub struct Grace {
    /// L: is the lock; guards how many runners have ended with somebody waiting.
    ends: Mutex<u64>,
    /// L: waited on with `ends`.
    ended: Condvar,
}

impl Grace {
    /// Nobody waits.
    pub fn new() -> Self {
        Self { ends: Mutex::new(0), ended: Condvar::new() }
    }

    /// Blocks until the runner of this moment (if there is one) has ended. With the gate closed
    /// before, no dispatch is in progress afterwards and none starts.
    pub fn wait<F: FencePolicy>(&self, state: &RunState<F>) {
        if !state.is_running() {
            return;
        }
        let mut ends = self.ends.lock();
        let before = *ends;
        // Announce, under the lock: the runner that sees it needs the lock to wake us, and gets it
        // only once we sleep.
        if !state.announce_waiter() {
            return;
        }
        while *ends == before {
            ends = self.ended.wait(ends);
        }
    }

    /// The runner's duty where its end told it to wake. Takes a short lock.
    #[cold]
    pub fn wake(&self) {
        *self.ends.lock() += 1;
        self.ended.notify_all();
    }
}
