//! Queueing an item some time later.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::attributes::At;
use crate::error::{QueueError, Queued};
use crate::handle::work::Work;
use crate::queue::Workqueue;
use crate::task::claim::Claimed;
use crate::task::header::{self, Job};
use crate::task::ticket::MaybeTicket;
use crate::timekeeper::delayed::Delayed;

impl Workqueue {
    /// Queues an item after `delay`, on the pod of the CPU that this is called on now. A delay of
    /// zero: at once, as [`Workqueue::queue`], with no timer. An item that is pending already (queued, or its timer runs)
    /// stays as it is.
    ///
    /// From here on it is pending: it can't be queued a second time, [`Work::flush`] waits for it,
    /// and [`Work::cancel`] takes it back. A flush of the queue doesn't wait for it before its time
    /// has come. A queue that is drained then refuses it, which cancels it. [`Workqueue::destroy`]
    /// and [`WorkerPools::shutdown`](crate::WorkerPools::shutdown) cancel it at once; else the timer
    /// keeps the queue and the pools. In all cases those who wait for it are told.
    ///
    /// Any context. It takes one lock that all timers of the pools share, in O(log n) of their number.
    ///
    /// # Errors
    /// [`QueueError::Disabled`], [`QueueError::Closed`]; [`QueueError::Draining`] with a delay of zero;
    /// [`QueueError::NoThread`] for the first timer of all, which is logged too.
    #[track_caller]
    pub fn queue_delayed(&self, work: &Work, delay: Duration) -> Result<Queued, QueueError> {
        self.queue_later(At::Here, work, delay, Location::caller(), false)
    }

    /// As [`Workqueue::queue_delayed`], for the source line that stands for it. `accepted`: see
    /// [`Workqueue::submit_with`].
    pub(crate) fn queue_later(
        &self,
        at: At,
        work: &Work,
        delay: Duration,
        site: &'static Location<'static>,
        accepted: bool,
    ) -> Result<Queued, QueueError> {
        if delay.is_zero() {
            return self.table().queue(at, work.header(), || work.hold(), site, accepted);
        }
        self.check_open()?;
        let pended = work.header().state.pend()?;
        if pended == Queued::AlreadyPending {
            return Ok(pended);
        }
        let item = work.hold();
        // SAFETY: `pend` succeeded: the bit is ours, and `Queued` takes it over.
        let queued =
            unsafe { header::Queued::new(item, Job { ticket: MaybeTicket::none(), site }) };
        // Where somebody has claimed it meanwhile it was queued, and is theirs.
        let armed = self.arm(at, work, delay, queued, accepted);
        let refused = armed.is_err_and(header::Queued::refuse);
        if refused { Err(self.no_timer()) } else { Ok(pended) }
    }

    /// Has an item run after `delay`, on this queue, whatever it is at: where its timer runs it is
    /// set anew, where it is queued, also elsewhere, it is taken out. A delay of zero: it is queued
    /// at once. `AlreadyPending`: that instance goes on as this one, and a flusher of it waits for this one. `Now`: it
    /// was idle.
    ///
    /// Any context. It waits for no work, only, yielding, for others' short steps with the same item.
    ///
    /// # Errors
    /// As [`Workqueue::queue_delayed`]. An instance that is pending elsewhere then stays as it is; but where this queue
    /// ends, or the timers do, at that very moment it is cancelled.
    #[track_caller]
    pub fn mod_delayed(&self, work: &Work, delay: Duration) -> Result<Queued, QueueError> {
        let site = Location::caller();
        // An instance pending elsewhere stays there where this queue won't have it.
        self.check_later(delay)?;
        loop {
            if let Some(mut claimed) = work.lent().claim() {
                claimed.with_job(|job| job.site = site);
                self.replace(work, delay, claimed)?;
                return Ok(Queued::AlreadyPending);
            }
            match self.queue_later(At::Here, work, delay, site, false) {
                // Somebody else has queued it between the two: that is what is to be modified.
                Ok(Queued::AlreadyPending) => {}
                queued => return queued,
            }
        }
    }

    /// Whether it takes what comes after a while.
    fn check_later(&self, delay: Duration) -> Result<(), QueueError> {
        if delay.is_zero() {
            self.table().check_at_once(false)
        } else if self.shared().pools.keeper().takes_timers() {
            self.check_open()
        } else {
            Err(self.no_timer())
        }
    }

    fn check_open(&self) -> Result<(), QueueError> {
        if self.table().is_closed() { Err(QueueError::Closed) } else { Ok(()) }
    }

    /// Why no timer can be set. The pools close their queues before the timers.
    fn no_timer(&self) -> QueueError {
        self.check_open().err().unwrap_or(QueueError::NoThread)
    }

    /// Puts a claimed instance into this queue, after a while. Where that was closed just now, it is
    /// cancelled, as all that was there.
    fn replace(
        &self,
        work: &Work,
        delay: Duration,
        mut claimed: Claimed,
    ) -> Result<(), QueueError> {
        if delay.is_zero() {
            return self.table().place(At::Here, claimed, false);
        }
        let ticket = claimed.with_job(|job| job.ticket.take());
        // An instance that isn't armed is cancelled here, unless somebody has claimed it.
        let armed = self.arm(At::Here, work, delay, claimed.release(), false).map_err(drop);
        // After it lies somewhere: this may let others through, and a claimant would wait.
        drop(ticket);
        armed.map_err(|()| self.no_timer())
    }

    fn arm(
        &self,
        at: At,
        work: &Work,
        delay: Duration,
        queued: header::Queued,
        accepted: bool,
    ) -> Result<(), header::Queued> {
        let (to, at) = (Arc::clone(&self.inner) as _, at.settled());
        let delayed = Delayed { queued, to, at, accepted };
        let set = |armed| *work.timer().lock() = Some(armed);
        let keeper = self.shared().pools.keeper();
        keeper.arm(delay, work.lent(), delayed, set).map_err(|delayed| delayed.queued)
    }
}
