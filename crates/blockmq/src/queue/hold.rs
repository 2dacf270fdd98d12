//! Holding a queue: quiesce, stop, freeze, drain. `README.md` beside the crate root has the fence pairs.

use corewise_sync::context;

use super::Queue;
use crate::admission::gate::{RunGate, Unquiesced};
use crate::admission::usage::Unfrozen;
use crate::queue::refused::NotHeld;
use crate::state::device::refuse_in_atomic_section;

/// What an [unquiesce](Queue::unquiesce) or an [unfreeze](Queue::unfreeze) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// It undid the last one: requests go on.
    Open,
    /// Another one is still in force.
    StillHeld,
}

impl Queue {
    /// Keeps requests from the driver until [`Queue::unquiesce`], nested; returns once no dispatch
    /// is in progress. Requests are still taken in, and wait; those that the driver has already may
    /// still be in flight and complete.
    ///
    /// May block, though not for long: for one pass of each hardware queue.
    ///
    /// # Panics
    /// Inside an atomic section, that is in a driver's `queue_request` or in a completion function:
    /// there it could only wait for itself. Use [`Queue::quiesce_nowait`] there.
    #[track_caller]
    pub fn quiesce(&self) {
        refuse_in_atomic_section("quiesce", "quiesce_nowait");
        self.quiesce_nowait();
        self.wait_quiesced();
    }

    /// Quiesces many queues: all of them first, with one fence, and then one wait for all. As
    /// [`Queue::quiesce`] in everything else. (Each hardware queue has its own runner to wait for, so the wait is as
    /// long as the longest.)
    ///
    /// # Panics
    /// As [`Queue::quiesce`].
    #[track_caller]
    pub fn quiesce_all(queues: &[&Queue]) {
        refuse_in_atomic_section("quiesce_all", "quiesce_nowait");
        RunGate::quiesce_all(queues.iter().map(|queue| &queue.core.gate));
        for queue in queues {
            queue.wait_quiesced();
        }
    }

    /// As [`Queue::quiesce`] without the wait: a dispatch may still be in progress. Any context.
    pub fn quiesce_nowait(&self) {
        self.core.gate.quiesce();
    }

    /// Waits until no dispatch is in progress that began before this call.
    fn wait_quiesced(&self) {
        for hctx in self.core.hctxs() {
            if hctx.state.is_running() {
                context::blocking("quiesce", || hctx.grace.wait(&hctx.state));
            }
        }
    }

    /// Undoes one quiesce. The last one [opens](Released::Open) the queue, and lets workers run every hardware queue on
    /// which requests arrived meanwhile. Never blocks; any context.
    ///
    /// # Errors
    /// One too many: nobody had quiesced it.
    pub fn unquiesce(&self) -> Result<Released, NotHeld> {
        match self.core.gate.unquiesce() {
            Unquiesced::Opened => {
                // Look: behind the gate's OpenFence.
                for hctx in self.core.hctxs() {
                    hctx.run_if_pending(&self.core);
                }
                Ok(Released::Open)
            }
            Unquiesced::Nested => Ok(Released::StillHeld),
            Unquiesced::Underflow => Err(self.not_held("unquiesce", "quiesce")),
        }
    }

    /// Whether somebody keeps the queue quiesced, a moment ago.
    pub fn is_quiesced(&self) -> bool {
        !self.core.gate.is_open()
    }

    /// Asks for no more dispatch of hardware queue `hctx`: for a driver whose device is full. It
    /// promises nothing about a dispatch in progress; use [`Queue::quiesce`] for that. Not nested. Any context.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn stop(&self, hctx: usize) {
        self.core.hctx(hctx).state.stop();
    }

    /// Undoes [`Queue::stop`], and has a worker run what arrived meanwhile. Any context. It costs some
    /// microseconds (a [heavy fence](corewise_sync::fence::heavy)): a driver that is full for moments at a time
    /// says [busy](crate::Dispatch::Busy) instead.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn start(&self, hctx: usize) {
        let hctx = self.core.hctx(hctx);
        if hctx.state.start() {
            hctx.run_if_pending(&self.core);
        }
    }

    /// Lets no request in until [`Queue::unfreeze`], nested, and waits until all that are in have
    /// completed and their completion functions have returned. Requests that are submitted
    /// meanwhile wait outside, and their submitters go on, as long as there is [room](crate::QueueBuilder::nr_requests).
    ///
    /// May block for as long as the driver needs, and where other programs want the CPUs, until the threads that
    /// have to finish requests get theirs: a slice of the scheduler's, milliseconds. While the queue is quiesced with
    /// requests in it, that is until somebody unquiesces it.
    ///
    /// # Panics
    /// Inside an atomic section, where it might wait for itself.
    #[track_caller]
    pub fn freeze(&self) {
        refuse_in_atomic_section("freeze", "start_freeze");
        self.start_freeze();
        context::blocking("freeze", || self.core.usage.wait_empty());
    }

    /// The first half of [`Queue::freeze`]: lets nobody in, waits for nothing. Any context.
    pub fn start_freeze(&self) {
        self.core.usage.start_freeze();
        // Requests inside have to get out, so what is pending is run once more.
        let any = self.run_pending();
        if any && self.is_quiesced() {
            tracing::warn!(
                queue = %self.core.name,
                "a queue is frozen while it is quiesced with requests inside; they wait until it \
                 is unquiesced"
            );
        }
    }

    /// Undoes one freeze. The last one [opens](Released::Open) the queue, and lets in the requests that wait outside.
    /// Never blocks; any context.
    ///
    /// # Errors
    /// One too many: nobody had frozen it.
    pub fn unfreeze(&self) -> Result<Released, NotHeld> {
        match self.core.usage.unfreeze() {
            Unfrozen::Thawed => {
                self.core.let_in();
                self.run_pending();
                Ok(Released::Open)
            }
            Unfrozen::Nested => Ok(Released::StillHeld),
            Unfrozen::Underflow => Err(self.not_held("unfreeze", "freeze")),
        }
    }

    /// Has workers run each hardware queue on which something is pending: a worker that finds nothing has taken
    /// a CPU from those that the caller waits for. False: there is none. The publisher of a request runs it, also at
    /// this very moment, so no fence is needed.
    fn run_pending(&self) -> bool {
        let mut any = false;
        for hctx in self.core.hctxs().filter(|hctx| hctx.has_pending()) {
            hctx.run_async(&self.core);
            any = true;
        }
        any
    }

    /// Undoes the caller's own freeze.
    pub(super) fn thaw(&self) {
        // An error only where somebody else's unfreeze was one too many, and undid the caller's: they were told nothing.
        let _released = self.unfreeze();
    }

    fn not_held(&self, asked: &'static str, missing: &'static str) -> NotHeld {
        NotHeld { queue: self.core.name.clone(), asked, missing }
    }

    /// Waits until every request that was submitted before has completed; those submitted
    /// meanwhile wait until the drain is over. Blocks as [`Queue::freeze`].
    ///
    /// # Panics
    /// As [`Queue::freeze`].
    #[track_caller]
    pub fn drain(&self) {
        refuse_in_atomic_section("drain", "start_freeze");
        self.freeze();
        self.thaw();
    }
}
