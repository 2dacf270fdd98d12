//! Timers of delayed items: set, taken back, fired, and cancelled with their queue or pools.
//!
//! The heap is a container as the lists of pools are (`../task/state.md`): an instance is in it while
//! its place says `Timer`, and goes in and out under the lock of `state`. Its claimant takes it out
//! by the handle that the item keeps. Who pops it claims it under the lock, since it gets another
//! ticket; or lets go of it where somebody else has claimed it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::heap::Handle;

use super::{Timekeeper, not_made};
use crate::error::shielded;
use crate::handle::work::Work;
use crate::pwq::table;
use crate::queue::Workqueue;
use crate::task::claim::{Claimed, Place};
use crate::task::header::Queued;

/// An instance whose timer runs. It has no ticket: no flush of a queue waits for it.
pub(crate) struct Delayed {
    pub(crate) queued: Queued,
    /// The item; the queued instance holds it too, for as long as it isn't claimed.
    pub(crate) work: Work,
    /// Where it will be queued.
    pub(crate) queue: Workqueue,
    pub(crate) place: table::Place,
}

/// What an item knows of its timer. It says nothing once that has fired, and then keeps nothing of the
/// pools.
#[derive(Clone)]
pub(crate) struct Armed {
    keeper: Weak<Timekeeper>,
    handle: Handle,
}

impl Armed {
    /// Takes the timer back; `None` where it has fired.
    pub(crate) fn disarm(self) -> Option<Queued> {
        let taken = self.keeper.upgrade()?.state.lock().timers.remove(self.handle);
        // The queue's handle, maybe the last, is dropped here, outside the lock.
        taken.map(|delayed| delayed.queued)
    }

    /// The time until it fires; `None` where it has.
    pub(crate) fn left(&self) -> Option<Duration> {
        let keeper = self.keeper.upgrade()?;
        let deadline = keeper.state.lock().timers.deadline(self.handle)?;
        Some(deadline.saturating_sub(keeper.now()))
    }

    /// Fires it now, if it hasn't fired.
    pub(crate) fn fire(self) {
        let Some(keeper) = self.keeper.upgrade() else { return };
        let taken = keeper.state.lock().timers.remove(self.handle).map(Delayed::popped);
        taken.into_iter().for_each(Popped::queue);
    }
}

/// What came out of the heap; `None`: somebody else has claimed it. Everything in it is dropped
/// outside the lock.
struct Popped {
    claimed: Option<Claimed>,
    delayed: (Work, Workqueue, table::Place),
}

impl Delayed {
    /// Under the lock, for one that was just popped.
    fn popped(self) -> Popped {
        let Delayed { queued, work, queue, place } = self;
        Popped { claimed: queued.claim(), delayed: (work, queue, place) }
    }
}

impl Popped {
    /// Never unwinds.
    fn queue(self) {
        self.with_claimed(|claimed, queue, place| {
            queue.place(place, claimed);
        });
    }

    /// Never unwinds.
    fn cancel(self) {
        self.with_claimed(|claimed, _, _| claimed.cancel());
    }

    fn with_claimed(self, end: impl FnOnce(Claimed, &Workqueue, table::Place)) {
        let (work, queue, place) = self.delayed;
        // It may be the item's last handle. While the instance is claimed that frees nothing: who ends
        // the instance does. Else the user's destructor runs here, and the other timers are to go on.
        shielded("dropping a delayed work item", || drop(work));
        if let Some(claimed) = self.claimed {
            // Where the queue refuses it that is logged, and the subscriber is user code.
            shielded("ending a delay", || end(claimed, &queue, place));
        }
    }
}

impl Timekeeper {
    /// Whether a timer could be set now: not where the pools are closed, or no thread can be made.
    pub(crate) fn takes_timers(self: &Arc<Self>) -> bool {
        let there = {
            let mut state = self.state.lock();
            if state.closed { Ok(false) } else { self.is_there(&mut state) }
        };
        there.unwrap_or_else(not_made)
    }

    /// Sets a timer. Gives the instance back where the pools are closed, or no thread can be made.
    pub(crate) fn arm(
        self: &Arc<Self>,
        after: Duration,
        delayed: Delayed,
    ) -> Result<(), Box<Delayed>> {
        // Set.
        let work = delayed.work.clone();
        let (queue, id) = (delayed.queue.clone(), delayed.queue.shared().id);
        let first = {
            let mut state = self.state.lock();
            let there = if state.closed { Ok(false) } else { self.is_there(&mut state) };
            if !matches!(there, Ok(true)) {
                drop(state);
                there.unwrap_or_else(not_made);
                return Err(Box::new(delayed));
            }
            let deadline = self.now().saturating_add(after);
            let first = state.timers.first().is_none_or(|first| deadline < first);
            let handle = state.timers.insert(deadline, delayed);
            *work.timer().lock() = Some(Armed { keeper: Arc::downgrade(self), handle });
            work.header().set_place(Place::Timer);
            first
        };
        if first {
            // Ring.
            self.alarm.ring();
        }
        if queue.is_closed() {
            // Who closed it may have cancelled its timers before this one was set.
            self.cancel_of(id);
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

    /// How many delayed items of each queue wait for their time (a moment ago).
    pub(crate) fn armed(&self) -> HashMap<u64, usize> {
        let mut armed = HashMap::new();
        for delayed in self.state.lock().timers.iter() {
            *armed.entry(delayed.queue.shared().id).or_default() += 1;
        }
        armed
    }

    /// Cancels the delayed items of a queue.
    pub(crate) fn cancel_of(&self, queue: u64) {
        self.cancel_if(|delayed| delayed.queue.shared().id == queue);
    }

    /// Cancels all delayed items.
    pub(crate) fn cancel_all(&self) {
        self.cancel_if(|_| true);
    }

    fn cancel_if(&self, which: impl Fn(&Delayed) -> bool) {
        let handles = self.state.lock().timers.handles(which);
        let next = |handle| self.state.lock().timers.remove(handle).map(Delayed::popped);
        // One by one: to cancel one tells who waits, and runs the user's destructors, which may want to
        // claim another.
        for handle in handles {
            next(handle).into_iter().for_each(Popped::cancel);
        }
    }
}
