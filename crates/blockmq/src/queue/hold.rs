//! Holding a queue: quiesce, freeze, drain. `README.md` beside the crate root has the fence pairs.

use std::sync::Arc;

use corewise_sync::context;

use super::Queue;
use crate::admission::gate::RunGate;
use crate::state::device::refuse_in_atomic_section;

/// Keeps requests of a queue from its driver until it is dropped: see [`Queue::quiesce`].
///
/// When the last one of a queue is dropped, workers run each hardware queue on which requests
/// arrived meanwhile. The drop never blocks; any context.
#[derive(Debug)]
#[must_use = "a queue is quiesced only as long as the guard lives"]
pub struct QuiesceGuard(Arc<Queue>);

/// Keeps requests out of a queue until it is dropped: see [`Queue::freeze`].
///
/// When the last guard of a queue is dropped, the requests that wait outside come in. If that guard
/// is also the queue's last handle, the queue ends with it: those that haven't reached the driver
/// complete as gone. The drop never blocks; any context.
#[derive(Debug)]
#[must_use = "a queue is frozen only as long as the guard lives"]
pub struct FreezeGuard(Arc<Queue>);

impl Queue {
    /// Keeps requests from the driver until the guard is dropped, nested; returns once no dispatch
    /// is in progress. Requests are still taken in, and wait. Those that the driver has already may
    /// still be in flight and complete.
    ///
    /// May block, though not for long: for one pass of each hardware queue.
    ///
    /// # Panics
    /// Inside an atomic section, that is in a driver's `queue_request` or in a completion function:
    /// there it could only wait for itself. Use [`Queue::quiesce_nowait`] there.
    #[track_caller]
    pub fn quiesce(self: &Arc<Self>) -> QuiesceGuard {
        refuse_in_atomic_section("quiesce", "quiesce_nowait");
        let guard = self.quiesce_nowait();
        self.wait_quiesced();
        guard
    }

    /// Quiesces many queues: closes all of them first, with one fence, and then waits once for all.
    /// Otherwise it behaves as [`Queue::quiesce`]. (Each hardware queue has its own runner to wait
    /// for, so the wait is as long as the longest.)
    ///
    /// # Panics
    /// See [`Queue::quiesce`].
    #[track_caller]
    pub fn quiesce_all(queues: &[Arc<Queue>]) -> Vec<QuiesceGuard> {
        refuse_in_atomic_section("quiesce_all", "quiesce_nowait");
        RunGate::quiesce_all(queues.iter().map(|queue| &queue.core.gate));
        let guards = queues.iter().cloned().map(QuiesceGuard).collect();
        for queue in queues {
            queue.wait_quiesced();
        }
        guards
    }

    /// Quiesces the queue as [`Queue::quiesce`] does, but doesn't wait: a dispatch may still be in
    /// progress. Any context.
    pub fn quiesce_nowait(self: &Arc<Self>) -> QuiesceGuard {
        self.core.gate.quiesce();
        QuiesceGuard(Arc::clone(self))
    }

    /// Waits until no dispatch is in progress that began before this call.
    fn wait_quiesced(&self) {
        for hctx in self.core.hctxs() {
            if hctx.state.is_running() {
                context::blocking("quiesce", || hctx.grace.wait(&hctx.state));
            }
        }
    }

    /// Returns true if the queue was quiesced a moment ago.
    pub fn is_quiesced(&self) -> bool {
        !self.core.gate.is_open()
    }

    /// Lets no request in until the guard is dropped, nested. Waits until all requests inside have
    /// completed and their completion functions have returned. Requests submitted meanwhile wait
    /// outside, and their submitters continue, as long as there is
    /// [room](crate::QueueBuilder::nr_requests).
    ///
    /// May block for as long as the driver needs. If other programs want the CPUs, it also waits
    /// until the threads that finish requests get theirs: a time slice, milliseconds. While the
    /// queue is quiesced with requests in it, it waits until no guard quiesces it any more.
    ///
    /// # Panics
    /// Inside an atomic section, where it might wait for itself.
    #[track_caller]
    pub fn freeze(self: &Arc<Self>) -> FreezeGuard {
        refuse_in_atomic_section("freeze", "start_freeze");
        let guard = self.start_freeze();
        self.wait_empty();
        guard
    }

    /// Begins a freeze as [`Queue::freeze`] does, but waits for nothing. Any context.
    pub fn start_freeze(self: &Arc<Self>) -> FreezeGuard {
        self.begin_freeze();
        FreezeGuard(Arc::clone(self))
    }

    fn begin_freeze(&self) {
        self.core.usage.start_freeze();
        // Requests inside have to get out, so pending ones are run once more.
        let any = self.run_pending();
        if any && self.is_quiesced() {
            tracing::warn!(
                queue = %self.core.name,
                "a queue is frozen while it is quiesced with requests inside; they wait until it \
                 is unquiesced"
            );
        }
    }

    fn wait_empty(&self) {
        context::blocking("freeze", || self.core.usage.wait_empty());
    }

    /// Undoes one freeze of the caller's.
    fn thaw(&self) {
        if self.core.usage.unfreeze() {
            self.core.let_in();
            self.run_pending();
        }
    }

    /// Makes workers run each hardware queue on which something is pending; returns false if there
    /// is none. A worker that finds nothing would take a CPU from the threads that the caller waits
    /// for. The publisher of a request runs it, also at this very moment, so no fence is needed.
    fn run_pending(&self) -> bool {
        let mut any = false;
        for hctx in self.core.hctxs().filter(|hctx| hctx.has_pending()) {
            hctx.run_async(&self.core);
            any = true;
        }
        any
    }

    /// Waits until every request that was submitted before has completed. Requests submitted
    /// meanwhile wait until the drain is over. Blocks as [`Queue::freeze`].
    ///
    /// # Panics
    /// See [`Queue::freeze`].
    #[track_caller]
    pub fn drain(&self) {
        refuse_in_atomic_section("drain", "start_freeze");
        self.begin_freeze();
        self.wait_empty();
        self.thaw();
    }
}

impl Drop for QuiesceGuard {
    fn drop(&mut self) {
        let core = &self.0.core;
        if core.gate.unquiesce() {
            // Look: behind the gate's OpenFence.
            for hctx in core.hctxs() {
                hctx.run_if_pending(core);
            }
        }
    }
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        self.0.thaw();
    }
}
