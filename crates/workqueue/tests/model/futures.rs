//! Doors into spawned futures: a look at one, and a cancel of those that wait.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::cell::UnsafeCell;

use crate::pwq::waiting::WaitList;
use crate::queue::future::{FutureState, PauseOutcome};

/// A spawned future without its pool: who may touch it.
pub struct FutureModel {
    state: FutureState,
    /// P: belongs to the thread that moved `state` out of idle; loom reports two accesses at once.
    polls: UnsafeCell<u32>,
    /// A: how often it ended.
    ended: AtomicU32,
    /// A: the pending bit of its item: cleared before a poll.
    pending: AtomicU32,
}

/// The futures that wait, which the end of a queue cancels.
pub struct WaitingModel(WaitList<Arc<FutureModel>>);

impl WaitingModel {
    /// Creates a list on which nobody waits.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        WaitingModel(WaitList::new(1))
    }

    /// Does what the queue's end does, after it has closed the queue.
    pub fn close(&self) {
        for future in self.0.close() {
            if future.state.close() {
                future.look();
            }
        }
    }
}

impl FutureModel {
    /// Creates a future that is nobody's.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        FutureModel {
            state: FutureState::new(),
            polls: UnsafeCell::new(0),
            ended: AtomicU32::new(0),
            pending: AtomicU32::new(0),
        }
    }

    /// Polls as a worker does; the future is pending still.
    pub fn poll(&self) {
        if self.state.begin() {
            self.touch();
            if self.state.pause() == PauseOutcome::Stopped {
                self.end();
            }
        }
    }

    /// Wakes it; the queue accepts that.
    pub fn wake(&self) {
        self.pending.fetch_or(1, Ordering::AcqRel);
    }

    /// Polls, as a worker does, a future that was woken, which waits again and takes a seat if it
    /// has none. `look`: as it has to be.
    pub fn poll_and_sit(self: &Arc<Self>, list: &WaitingModel, sit: bool, look: bool) {
        self.pending.fetch_and(0, Ordering::AcqRel);
        if !self.state.begin() {
            return;
        }
        self.touch();
        if sit && list.0.sit(0, Arc::clone(self)).is_err() {
            self.state.close();
        }
        match self.state.pause() {
            PauseOutcome::Waits => {}
            PauseOutcome::Closed if look => self.look(),
            PauseOutcome::Closed => {}
            PauseOutcome::Stopped => self.end(),
        }
    }

    fn look(&self) {
        if self.pending.load(Ordering::Acquire) == 0 {
            self.stop();
        }
    }

    /// Polls as a worker does; the future is ready.
    pub fn poll_ready(&self) {
        if self.state.begin() {
            self.touch();
            self.state.finish();
            self.end();
        }
    }

    /// Does what an abort does, or a wake-up that the queue refuses.
    pub fn stop(&self) {
        if self.state.stop() {
            self.end();
        }
    }

    /// Returns how often it ended.
    pub fn ended(&self) -> u32 {
        self.ended.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.touch();
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn touch(&self) {
        // SAFETY: the caller owns the future, which is what the model is to show.
        self.polls.with_mut(|polls| unsafe { *polls += 1 });
    }
}

// SAFETY: as `FutureTask`: `polls` is touched by the future's owner alone.
unsafe impl Sync for FutureModel {}
