//! Queueing of an item after a delay, and items that run periodically.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_sync::time;

use crate::attributes::At;
use crate::error::{QueueError, Queued};
use crate::handle::work::Work;
use crate::queue::Workqueue;
use crate::task::claim::Claimed;
use crate::task::header::{self, Job};
use crate::task::ticket::MaybeTicket;
use crate::timekeeper::delayed::Delayed;

impl Workqueue {
    /// Queues an item after `delay`, on the pod of the present CPU. If the delay is zero, the item
    /// is queued at once, as by [`Workqueue::queue`], with no timer. An item that is pending
    /// already (queued, or its timer runs) stays as it is.
    ///
    /// From here on the item is pending: it can't be queued a second time, [`Work::flush`] waits
    /// for it, and [`Work::cancel`] takes it back. A flush of the queue doesn't wait for it before
    /// its time has come. If the queue is draining when the time comes, the queue refuses the item,
    /// which cancels it. [`Workqueue::destroy`] and
    /// [`WorkerPools::shutdown`](crate::WorkerPools::shutdown) cancel it at once; else the timer
    /// keeps the queue and the pools. In all cases its waiters are woken.
    ///
    /// Any context. It takes one lock that all timers of the pools share, in O(log n) of their
    /// number.
    ///
    /// # Errors
    /// [`QueueError::Disabled`], [`QueueError::Closed`]; [`QueueError::Draining`] with a delay of
    /// zero; [`QueueError::NoThread`] for the first timer of all, which is logged too.
    #[track_caller]
    pub fn queue_delayed(&self, work: &Work, delay: Duration) -> Result<Queued, QueueError> {
        self.queue_later(At::Here, work, delay, Location::caller(), false)
    }

    /// Queues the item as [`Workqueue::queue_delayed`] does, for the given source line. `accepted`:
    /// see [`Workqueue::submit_with`].
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
        // If another thread has claimed it meanwhile, it was queued, and is the claimant's.
        let armed = self.arm(at, work, delay, queued, accepted);
        let refused = armed.is_err_and(header::Queued::refuse);
        if refused { Err(self.no_timer()) } else { Ok(pended) }
    }

    /// Makes an item run after `delay`, on this queue, in whatever state the item is. If its timer
    /// runs, the timer is set anew; if it is queued, here or elsewhere, it is taken out. If the
    /// delay is zero, the item is queued at once. Returns `AlreadyPending` if the item was pending:
    /// that instance continues as this one, and its flushers wait for this one. Returns `Now` if
    /// the item was idle.
    ///
    /// Any context. It waits for no work. It only yields while others take short steps with the
    /// same item.
    ///
    /// # Errors
    /// See [`Workqueue::queue_delayed`]. An instance that is pending elsewhere then stays as it is.
    /// If this queue or the timers end at that very moment, the instance is cancelled.
    #[track_caller]
    pub fn mod_delayed(&self, work: &Work, delay: Duration) -> Result<Queued, QueueError> {
        let site = Location::caller();
        // An instance pending elsewhere stays there if this queue refuses it.
        self.check_later(delay)?;
        loop {
            if let Some(mut claimed) = work.lent().claim() {
                claimed.with_job(|job| job.site = site);
                self.replace(work, delay, claimed)?;
                return Ok(Queued::AlreadyPending);
            }
            match self.queue_later(At::Here, work, delay, site, false) {
                // Another thread has queued it between the two: modify that instance.
                Ok(Queued::AlreadyPending) => {}
                queued => return queued,
            }
        }
    }

    /// Checks that the queue takes work with this delay.
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

    /// Returns the reason why no timer can be set. The pools close their queues before the timers.
    fn no_timer(&self) -> QueueError {
        self.check_open().err().unwrap_or(QueueError::NoThread)
    }

    /// Puts a claimed instance into this queue, after a delay. If the queue was closed just now,
    /// the instance is cancelled, like all others there.
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
        // An instance that isn't armed is cancelled here, unless it is claimed.
        let armed = self.arm(At::Here, work, delay, claimed.release(), false).map_err(drop);
        // This comes after the instance lies somewhere: it may let others through, and a claimant
        // would wait.
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

impl Workqueue {
    /// Runs `tick` each `period`, for the first time when one has passed, until the [`Ticker`] is
    /// dropped.
    ///
    /// The ticks have a rhythm, which no delay changes: they are planned for the whole multiples of
    /// the period from this call on. If a tick is late, since its worker comes late or the previous
    /// tick took longer, the ticks planned for the time until its end are skipped. None is made up
    /// for, no two run at once, and the next comes in time. (Tokio's `MissedTickBehavior::Skip`.)
    ///
    /// Each tick is a run of one work item, near the calling CPU, and allocates nothing. A panic in
    /// it is logged, and the next comes all the same, also while the queue is
    /// [drained](Workqueue::drain); the end of the queue ends them. Any context.
    ///
    /// # Errors
    /// [`QueueError::Closed`], [`QueueError::NoThread`].
    ///
    /// # Panics
    /// If the period is zero.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// use std::time::Duration;
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("statistics").build(&pools)?;
    /// let mut seconds = 0;
    /// let ticker = queue.every(Duration::from_secs(1), move || {
    ///     seconds += 1;
    ///     println!("up for {seconds} s");
    /// })?;
    /// // ...
    /// ticker.stop();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn every<C: FnMut() + Send + 'static>(
        &self,
        period: Duration,
        mut tick: C,
    ) -> Result<Ticker, QueueError> {
        assert!(!period.is_zero(), "a tick each 0 s has no end: Workqueue::every wants a period");
        let (queue, began) = (self.clone(), time::now());
        let rhythm =
            Rhythm { queue, at: At::Here.settled(), site: Location::caller(), began, period };
        let (at, site) = (rhythm.at, rhythm.site);
        let work = Work::named_for::<C, _>(move || {
            let _goes_on = NextTick(&rhythm);
            tick();
        });
        self.queue_later(at, &work, period, site, true)?;
        Ok(Ticker { work })
    }
}

/// A periodic job: see [`Workqueue::every`]. When the ticker is dropped, no further tick begins;
/// one that runs goes on to its end.
#[must_use = "dropping it stops the ticks"]
pub struct Ticker {
    work: Work,
}

impl Ticker {
    /// Stops the ticks, and waits for one that runs. May block; on a worker the pool starts other
    /// work meanwhile.
    ///
    /// # Panics
    /// If the tick itself calls it: it would wait for its own end, for ever.
    #[track_caller]
    pub fn stop(self) {
        self.work.disable_sync();
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.work.disable();
    }
}

impl fmt::Debug for Ticker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticker").field("work", &self.work).finish()
    }
}

/// The times and the place of the planned ticks.
struct Rhythm {
    queue: Workqueue,
    at: At,
    site: &'static Location<'static>,
    began: Instant,
    period: Duration,
}

/// A tick runs; when it is over, or has panicked, the next one is planned.
struct NextTick<'a>(&'a Rhythm);

impl Drop for NextTick<'_> {
    fn drop(&mut self) {
        let Rhythm { queue, at, site, began, period } = self.0;
        // Without a ticker the last handle is gone, or the item is disabled.
        if let Some(work) = Work::current() {
            let rest = rest(time::now().saturating_duration_since(*began), *period);
            // An error means this, or the end of the queue.
            let _ = queue.queue_later(*at, &work, rest, site, true);
        }
    }
}

/// Returns the rest of the period that is under way.
fn rest(since: Duration, period: Duration) -> Duration {
    // Less than the period, which may be more than 64 bits of nanoseconds.
    let gone = since.as_nanos() % period.as_nanos();
    let gone = Duration::new((gone / 1_000_000_000) as u64, (gone % 1_000_000_000) as u32);
    period - gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_tick_is_at_the_next_whole_multiple_of_the_period_however_late_this_one_is() {
        let next = |now| {
            let (now, period) = (Duration::from_millis(now), Duration::from_millis(10));
            (now + rest(now, period)).as_millis()
        };
        assert_eq!([30, 31, 39, 40, 79].map(next), [40, 40, 40, 50, 80]);
        let year = Duration::from_secs(31_536_000);
        assert_eq!(rest(year, Duration::MAX), Duration::MAX - year);
    }
}
