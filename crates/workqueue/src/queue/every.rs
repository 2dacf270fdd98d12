//! An item that runs again and again, in time.

use std::fmt;
use std::panic::Location;
use std::time::{Duration, Instant};

use corewise_sync::time;

use crate::attributes::At;
use crate::error::QueueError;
use crate::handle::work::Work;
use crate::queue::Workqueue;

impl Workqueue {
    /// Runs `tick` each `period`, for the first time when one has passed, until the [`Ticker`] is dropped.
    ///
    /// The ticks have a rhythm, which no delay changes: they are planned for the whole multiples of the period from this
    /// call on. Where one is late, since its worker comes late or the one before took longer, those that were planned for
    /// the time until its end are left out: none is made up for, no two run at once, and the next comes in time. (Tokio's
    /// `MissedTickBehavior::Skip`.)
    ///
    /// Each tick is a run of one work item, near the CPU that this is called on, and no allocation. A panic in it is logged,
    /// and the next comes all the same, also while the queue is [drained](Workqueue::drain); the end of the queue ends them.
    /// Any context.
    ///
    /// # Errors
    /// [`QueueError::Closed`], [`QueueError::NoThread`].
    ///
    /// # Panics
    /// Where the period is zero.
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
            let _goes_on = GoesOn(&rhythm);
            tick();
        });
        self.queue_later(at, &work, period, site, true)?;
        Ok(Ticker { work })
    }
}

/// What runs again and again: see [`Workqueue::every`]. Dropping it stops that: no tick begins any more, and one that runs
/// goes on to its end.
#[must_use = "dropping it stops the ticks"]
pub struct Ticker {
    work: Work,
}

impl Ticker {
    /// Stops the ticks, and waits for one that runs. May block; on a worker the pool starts other work meanwhile.
    ///
    /// # Panics
    /// Called from the tick: it would wait for its own end, for ever.
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

/// When and where ticks are planned for.
struct Rhythm {
    queue: Workqueue,
    at: At,
    site: &'static Location<'static>,
    began: Instant,
    period: Duration,
}

/// A tick runs; when it is over, or has panicked, the next one is planned.
struct GoesOn<'a>(&'a Rhythm);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        let Rhythm { queue, at, site, began, period } = self.0;
        // Where there is no ticker any more the last handle is gone, or the item is disabled.
        if let Some(work) = Work::current() {
            let rest = rest(time::now().saturating_duration_since(*began), *period);
            // An error: that, or the queue has ended.
            let _ = queue.queue_later(*at, &work, rest, site, true);
        }
    }
}

/// How long the period that is under way has still to go.
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
