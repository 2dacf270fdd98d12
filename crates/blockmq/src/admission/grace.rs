//! The grace period of a quiesce: wait until the runner that may have missed it has ended.

use crate::admission::run_state::RunState;
use crate::admission::wait_queue::WaitQueue;

/// Where those wait who need one hardware queue's runner to end.
///
/// Its lock is taken on the slow path only: by waiters, and by a runner that was told that there
/// are some.
#[derive(Debug, Default)]
pub struct Grace {
    ended: WaitQueue,
}

impl Grace {
    /// Nobody waits.
    pub fn new() -> Self {
        Self { ended: WaitQueue::new() }
    }

    /// Blocks until the runner of this moment (if there is one) has ended. With the gate closed
    /// before, no dispatch is in progress afterwards and none starts.
    pub fn wait(&self, state: &RunState) {
        if !state.is_running() {
            return;
        }
        // Announce: the runner that sees it wakes us after its end.
        let Some(run) = state.announce_waiter() else { return };
        // A wake-up says only that some run has ended. It may be one from before: its runner wakes
        // after its end, and the next one may have begun meanwhile.
        self.ended.wait(|| (!state.is_run(run)).then_some(()));
    }

    /// The runner's duty where its end told it to wake. Takes a short lock.
    #[cold]
    pub fn wake(&self) {
        self.ended.tell();
    }
}
