//! `delay`: passes requests on to the device below some time after they came, as a slow disk would
//! answer. The kernel's is `dm-delay`.
//!
//! A request goes into an inbox first; a push that finds it empty queues the work item. The work
//! item alone owns the requests that wait, ordered by their time, and never runs twice at once: so
//! there is no lock that a submitter could meet. It takes the inbox, passes on the requests that
//! are due and sets its own timer for the next one. A push that comes while it runs queues it once
//! more.
//!
//! Once the workers are gone there is no timer: the next thread that comes passes on all that
//! waits, at once (`../end.rs`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_blockmq::for_drivers::EndOfWorkers;
use corewise_blockmq::{BlockDevice, Dispatch, Driver, Geometry, Info, Op, Started};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::time::Stamp;
use corewise_workqueue::{EndNotice, Work, Workqueue};

use crate::below::pass_on;
use crate::faulty::number;

/// The times that requests wait before they are passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Reads, requests for extents, and prefetches.
    pub read: Duration,
    /// Writes, discards and write-zeroes.
    pub write: Duration,
    /// Flushes.
    pub flush: Duration,
    /// Most time that is added to each at random, except to those that don't wait otherwise.
    pub jitter: Duration,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Delays {
    /// Returns how long request number `n` waits.
    fn of(&self, op: Op, n: u64) -> Duration {
        let base = match op {
            Op::Read | Op::Extents | Op::Prefetch => self.read,
            Op::Flush => self.flush,
            _ => self.write,
        };
        let most = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX);
        if base.is_zero() || most == 0 {
            return base;
        }
        base.saturating_add(Duration::from_nanos(
            number(self.seed, n) % most.saturating_add(1).max(1),
        ))
    }
}

/// A slow device over another one. Requests without a delay are passed on at once.
///
/// A request never waits less than it should, unless the worker pools are shut down meanwhile. The
/// timers of the workqueue may make it wait longer, by some tens of microseconds if a core is free.
/// Requests that wait take a tag each, as in a slow disk: a deep queue needs a deep enough one
/// here.
pub struct Delay {
    line: Arc<Line>,
    /// The notice of the end of the workers, for the line.
    _notice: EndNotice,
}

struct Line {
    below: Arc<dyn BlockDevice>,
    delays: Delays,
    /// A: requests so far, for random numbers; Relaxed: each needs its own number and no more.
    count: AtomicU64,
    /// Requests that came since the last look.
    fresh: Inbox<Box<DelayedRequest>>,
    /// L: is the lock; guards the requests that wait. While there are workers, only the work item
    /// takes it, so no thread waits for it.
    waiting: Mutex<BinaryHeap<Reverse<Box<DelayedRequest>>>>,
    queue: Workqueue,
    work: Work,
    /// The record of whether there are workers.
    end: EndOfWorkers,
}

struct DelayedRequest {
    link: Link,
    due: Stamp,
    /// Number of the request: first come, first served among those that are due together.
    n: u64,
    rq: Started,
}

// SAFETY: `link` returns the one field of `self`, which no other value returns.
unsafe impl HasLink for DelayedRequest {
    fn link(&self) -> &Link {
        &self.link
    }
}

impl DelayedRequest {
    fn order(&self) -> (u64, u64) {
        (self.due.nanos(), self.n)
    }
}

impl PartialEq for DelayedRequest {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for DelayedRequest {}

impl PartialOrd for DelayedRequest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DelayedRequest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl Delay {
    /// Creates a device that delays requests to `below`; workers of the queue
    /// [below](Workqueue::below) `wq` pass them on.
    pub fn new(below: Arc<dyn BlockDevice>, delays: Delays, wq: &Workqueue) -> Self {
        let line = Arc::new_cyclic(|weak: &Weak<Line>| {
            let weak = weak.clone();
            let work = Work::new(move || {
                // A device that is gone has nothing that waits: each request keeps it.
                if let Some(line) = weak.upgrade() {
                    line.look();
                }
            });
            Line {
                below,
                delays,
                count: AtomicU64::new(0),
                fresh: Inbox::new(),
                waiting: Mutex::new(BinaryHeap::new()),
                queue: wq.below(),
                work,
                end: EndOfWorkers::new(),
            }
        });
        let told = Arc::downgrade(&line);
        let notice = line.queue.on_end(move || {
            if let Some(line) = told.upgrade() {
                line.end.come();
                line.look_alone();
            }
        });
        Self { line, _notice: notice }
    }
}

impl Line {
    /// Passes on the requests that are due and sets the timer for the rest.
    fn look(&self) {
        let mut due = Vec::new();
        let next = {
            let mut waiting = self.waiting.lock();
            waiting.extend(self.fresh.take().map(Reverse));
            let now = Stamp::precise().nanos();
            while waiting.peek().is_some_and(|first| first.0.due.nanos() <= now) {
                due.extend(waiting.pop());
            }
            waiting.peek().map(|first| Duration::from_nanos(first.0.due.nanos() - now))
        };
        for Reverse(first) in due {
            let offset = first.rq.offset();
            pass_on(&*self.below, first.rq, offset);
        }
        if let Some(next) = next {
            // A push may have queued it meanwhile: then it looks again at once.
            let _ = self.queue.queue_delayed(&self.work, next);
            self.unless_alone();
        }
    }

    /// Runs the line here if there are no workers any more. Called after the push, and the attempt
    /// to queue the work item.
    fn unless_alone(&self) {
        if self.end.has_come() {
            self.look_alone();
        }
    }

    /// Passes on everything that waits: there is no timer any more.
    #[cold]
    fn look_alone(&self) {
        let all = {
            let mut waiting = self.waiting.lock();
            waiting.extend(self.fresh.take().map(Reverse));
            mem::take(&mut *waiting)
        };
        // They go in their order, the earliest first.
        for Reverse(next) in all.into_sorted_vec().into_iter().rev() {
            let offset = next.rq.offset();
            pass_on(&*self.below, next.rq, offset);
        }
    }
}

impl Driver for Delay {
    fn info(&self) -> Info {
        let over = Info::over("delay", &*self.line.below);
        // A flush that has nothing to do below may yet have to take its time here.
        let can_flush = over.geometry.can_flush || !self.line.delays.flush.is_zero();
        let geometry = Geometry { can_flush, ..over.geometry };
        Info { geometry, knows_extents: true, ..over }
    }

    fn is_outdated(&self) -> bool {
        self.line.below.is_outdated()
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        let line = &self.line;
        let n = line.count.fetch_add(1, Ordering::Relaxed);
        let delay = line.delays.of(rq.op(), n);
        if delay.is_zero() {
            let offset = rq.offset();
            pass_on(&*line.below, rq, offset);
        } else {
            let due = Stamp::precise().plus(delay);
            if line.fresh.push(Box::new(DelayedRequest { link: Link::new(), due, n, rq })) {
                // Its timer decides nothing: this one may come first.
                let _ = line.queue.mod_delayed(&line.work, Duration::ZERO);
                line.unless_alone();
            }
        }
        Dispatch::Started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_its_delay_and_jitter_adds_to_those_that_wait() {
        let ms = Duration::from_millis;
        let delays = Delays { read: ms(1), write: ms(2), flush: ms(3), ..Delays::default() };
        let of = |op| delays.of(op, 0);
        assert_eq!([of(Op::Read), of(Op::Write), of(Op::Flush)], [ms(1), ms(2), ms(3)]);
        assert_eq!([of(Op::Discard), of(Op::WriteZeroes)], [ms(2), ms(2)]);
        let jitter = Delays { read: ms(1), jitter: ms(4), ..Delays::default() };
        assert_eq!(jitter.of(Op::Write, 0), Duration::ZERO);
        let all: Vec<_> = (0..1000).map(|n| jitter.of(Op::Read, n)).collect();
        assert!(all.iter().all(|d| (ms(1)..=ms(5)).contains(d)));
        assert!(all.iter().any(|d| *d < ms(2)) && all.iter().any(|d| *d > ms(4)));
    }
}
