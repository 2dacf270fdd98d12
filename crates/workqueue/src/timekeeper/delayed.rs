//! Timers of delayed items: set, taken back, fired, and cancelled with their queue or pools.
//!
//! The heap is a container as the lists of pools are (`../task/state.md`). An instance is in it
//! while its place says `Timer`, and goes in and out under the lock of `state`. Its claimant takes
//! it out by the handle that the item keeps. The popper claims it under the lock, since it gets
//! another ticket; or lets go of it if another thread has claimed it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::heap::Handle;

use super::Timekeeper;
use crate::attributes::At;
use crate::error::shielded;
use crate::pool::alarm::PoolKeeper;
use crate::task::claim::{Claimed, Container};
use crate::task::header::LentItem;
use crate::task::header::Queued;

/// An instance whose timer runs. It has no ticket: no flush of a queue waits for it.
pub(crate) struct Delayed {
    pub(crate) queued: Queued,
    /// The queue that it goes to.
    pub(crate) to: Arc<dyn Destination>,
    pub(crate) at: At,
    /// True if it is part of work that the queue accepted before: a drain lets it through.
    pub(crate) accepted: bool,
}

/// The queue that a delayed instance goes to when its time has come, by a handle of it.
pub(crate) trait Destination: Send + Sync {
    /// Returns the queue's number.
    fn id(&self) -> u64;
    /// Returns true if it takes nothing any more.
    fn is_closed(&self) -> bool;
    /// Queues it; if the queue doesn't take it, it is cancelled.
    fn take(&self, at: At, claimed: Claimed, accepted: bool);
}

/// An item's reference to its timer. Once the timer has fired, it is void, and keeps nothing of the
/// pools.
#[derive(Clone)]
pub(crate) struct TimerHandle {
    keeper: Weak<Timekeeper>,
    handle: Handle,
}

impl TimerHandle {
    /// Takes the timer back; returns `None` if it has fired.
    pub(crate) fn disarm(self) -> Option<Queued> {
        let taken = self.keeper.upgrade()?.state.lock().timers.remove(self.handle);
        // The queue's handle, maybe the last, is dropped here, outside the lock.
        taken.map(|delayed| delayed.queued)
    }

    /// Returns the time until it fires; `None` if it has.
    pub(crate) fn left(&self) -> Option<Duration> {
        let keeper = self.keeper.upgrade()?;
        let deadline = keeper.state.lock().timers.deadline(self.handle)?;
        Some(deadline.saturating_sub(keeper.now()))
    }

    /// Fires it now, if it hasn't fired.
    pub(crate) fn fire(self) {
        let Some(keeper) = self.keeper.upgrade() else { return };
        let taken = keeper.state.lock().timers.remove(self.handle).map(Delayed::popped);
        taken.into_iter().for_each(FiredTimer::queue);
    }
}

/// A timer that came out of the heap; `None`: somebody else has claimed it. Everything in it is
/// dropped outside the lock.
struct FiredTimer {
    claimed: Option<Claimed>,
    to: Arc<dyn Destination>,
    at: At,
    accepted: bool,
}

impl Delayed {
    /// Claims an item that was just popped, under the lock.
    fn popped(self) -> FiredTimer {
        let Delayed { queued, to, at, accepted } = self;
        FiredTimer { claimed: queued.claim(), to, at, accepted }
    }
}

impl FiredTimer {
    /// Queues the item. Never unwinds.
    fn queue(self) {
        let FiredTimer { claimed, to, at, accepted } = self;
        // If the queue refuses it that is logged, and the subscriber is user code.
        shielded("ending a delay", || {
            claimed.into_iter().for_each(|claimed| to.take(at, claimed, accepted));
        });
    }

    /// Cancels the item. Never unwinds.
    fn cancel(self) {
        shielded("ending a delay", || self.claimed.map_or((), Claimed::cancel));
    }
}

impl Timekeeper {
    /// Returns true if a timer could be set now. That takes open pools, and a thread.
    pub(crate) fn takes_timers(self: &Arc<Self>) -> bool {
        self.staffed(true).is_some()
    }

    /// Sets a timer. Gives the instance back if the pools are closed, or no thread can be made.
    /// `set` notes down where the timer of the item is.
    pub(crate) fn arm(
        self: &Arc<Self>,
        after: Duration,
        item: LentItem<'_>,
        delayed: Delayed,
        set: impl FnOnce(TimerHandle),
    ) -> Result<(), Box<Delayed>> {
        // Set.
        let to = Arc::clone(&delayed.to);
        let first = {
            let Some(mut state) = self.staffed(true) else {
                return Err(Box::new(delayed));
            };
            let deadline = self.now().saturating_add(after);
            let first = state.timers.first().is_none_or(|first| deadline < first);
            let handle = state.timers.insert(deadline, delayed);
            set(TimerHandle { keeper: Arc::downgrade(self), handle });
            item.set_place(Container::Timer);
            first
        };
        if first {
            // Ring.
            self.alarm.ring();
        }
        if to.is_closed() {
            // Its closer may have cancelled its timers before this one was set.
            self.cancel_of(to.id());
        }
        Ok(())
    }

    /// Queues what is due.
    pub(super) fn fire(&self, now: Duration) {
        let next = || self.state.lock().timers.pop_due(now).map(Delayed::popped);
        // One by one: queueing may come to user code, which may want to claim another of them.
        while let Some(popped) = next() {
            popped.queue();
        }
    }

    /// Returns how many delayed items of each queue wait for their time (a moment ago).
    pub(crate) fn armed(&self) -> HashMap<u64, usize> {
        let mut armed = HashMap::new();
        for delayed in self.state.lock().timers.iter() {
            *armed.entry(delayed.to.id()).or_default() += 1;
        }
        armed
    }

    /// Cancels the delayed items of a queue.
    pub(crate) fn cancel_of(&self, queue: u64) {
        self.cancel_if(|delayed| delayed.to.id() == queue);
    }

    /// Cancels those delayed items.
    pub(crate) fn cancel_if(&self, which: impl Fn(&Delayed) -> bool) {
        let handles = self.state.lock().timers.handles(which);
        let next = |handle| self.state.lock().timers.remove(handle).map(Delayed::popped);
        // One by one: to cancel one tells who waits, and runs the user's destructors, which may
        // want to claim another.
        for handle in handles {
            next(handle).into_iter().for_each(FiredTimer::cancel);
        }
    }
}
