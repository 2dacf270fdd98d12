//! Queueing an item some time later.

use std::panic::Location;
use std::time::Duration;

use crate::attributes::At;
use crate::handle::work::Work;
use crate::queue::Workqueue;
use crate::task::claim::Claimed;
use crate::task::header::{Job, Queued};
use crate::task::ticket::MaybeTicket;
use crate::timekeeper::delayed::Delayed;

impl Workqueue {
    /// Queues an item after `delay`, on the pod of the CPU that this is called on now. A delay of
    /// zero: at once, as [`Workqueue::queue`], with no timer. False where the item is pending
    /// already (queued, or its timer runs) or disabled, the queue was destroyed or the pools were
    /// shut down, or the first timer of all finds no thread for it (which is logged).
    ///
    /// From here on it is pending: it can't be queued a second time, [`Work::flush`] waits for it,
    /// and [`Work::cancel`] takes it back. A flush of the queue doesn't wait for it before its time
    /// has come. A queue that is drained then refuses it, which cancels it. [`Workqueue::destroy`]
    /// and [`WorkerPools::shutdown`](crate::WorkerPools::shutdown) cancel it at once; else the timer
    /// keeps the queue and the pools. In all cases those who wait for it are told.
    ///
    /// Any context. It takes one lock that all timers of the pools share, in O(log n) of their number.
    #[track_caller]
    pub fn queue_delayed(&self, work: &Work, delay: Duration) -> bool {
        self.queue_delayed_at(At::Here, work, delay)
    }

    /// As [`Workqueue::queue_delayed`], at a place of the caller's choice.
    #[track_caller]
    pub fn queue_delayed_at(&self, at: At, work: &Work, delay: Duration) -> bool {
        if delay.is_zero() {
            return self.queue_at(at, work);
        }
        if self.is_closed() || !work.header().state.pend() {
            return false;
        }
        let (item, site) = (work.hold(), Location::caller());
        // SAFETY: `pend` succeeded: the bit is ours, and `Queued` takes it over.
        let queued = unsafe { Queued::new(item, Job { ticket: MaybeTicket::none(), site }) };
        match self.arm(at, work, delay, queued) {
            Ok(()) => true,
            // Where somebody has claimed it meanwhile, it was queued, and is theirs.
            Err(queued) => !queued.refuse(),
        }
    }

    /// Has an item run after `delay`, on this queue, whatever it is at: where its timer runs it is
    /// set anew, where it is queued, also elsewhere, it is taken out. A delay of zero: it is queued
    /// at once. True where it was pending; that instance then goes on as this one, and who flushes it
    /// waits for this one. False where it was idle, and also where it could not be queued, for the
    /// reasons that [`Workqueue::queue_delayed`] has: an instance that is pending elsewhere then stays
    /// as it is. With a delay of zero a queue that is being drained refuses it too.
    ///
    /// Any context. It waits for no work, only, yielding, for others' short steps with the same item.
    #[track_caller]
    pub fn mod_delayed(&self, work: &Work, delay: Duration) -> bool {
        self.mod_delayed_at(At::Here, work, delay)
    }

    /// As [`Workqueue::mod_delayed`], at a place of the caller's choice.
    #[track_caller]
    pub fn mod_delayed_at(&self, at: At, work: &Work, delay: Duration) -> bool {
        let site = Location::caller();
        // What is pending elsewhere stays there where this queue won't have it.
        if self.refuses(delay) {
            return false;
        }
        loop {
            if let Some(mut claimed) = work.lent().claim() {
                claimed.with_job(|job| job.site = site);
                self.replace(at, work, delay, claimed);
                return true;
            }
            if self.queue_delayed_at(at, work, delay) || !work.is_pending() {
                return false;
            }
            // Somebody else has queued it between the two: that is what is to be modified.
        }
    }

    /// Whether it takes nothing that comes after a while.
    fn refuses(&self, delay: Duration) -> bool {
        if delay.is_zero() {
            return self.table().refuses_at_once(false);
        }
        self.is_closed() || !self.shared().pools.keeper().takes_timers()
    }

    /// Puts a claimed instance into this queue, after a while. Where that was closed just now, it is
    /// cancelled, as all that was there.
    fn replace(&self, at: At, work: &Work, delay: Duration, mut claimed: Claimed) {
        if delay.is_zero() {
            self.place(at, claimed);
        } else if self.is_closed() {
            claimed.cancel();
        } else {
            let ticket = claimed.with_job(|job| job.ticket.take());
            let queued = claimed.release();
            if let Err(queued) = self.arm(at, work, delay, queued) {
                // Cancelled, unless somebody has claimed it.
                drop(queued);
            }
            // After it lies somewhere: this may let others through, and who claims it would wait.
            drop(ticket);
        }
    }

    fn arm(&self, at: At, work: &Work, delay: Duration, queued: Queued) -> Result<(), Queued> {
        let delayed = Delayed { queued, to: self.destination(), at: at.settled() };
        let set = |armed| *work.timer().lock() = Some(armed);
        let keeper = self.shared().pools.keeper();
        keeper.arm(delay, work.lent(), delayed, set).map_err(|delayed| delayed.queued)
    }
}
