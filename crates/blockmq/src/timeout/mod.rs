//! Timeouts: the driver hears of a request that it has had for too long, and that call can't race
//! the request's completion.
//!
//! `README.md` beside this file has the protocol.

use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::atomic::Ordering;
use corewise_sync::context;
use corewise_sync::panics::caught;
use corewise_sync::time::Stamp;
use corewise_workqueue::{Work, Workqueue};

use crate::admission::tag_state::{Release, Watch};
use crate::request::Op;
use crate::state::core::{Core, Hctx};
use crate::state::late::{LateOne, TagSlot, TimedOut, Timeouts, TimerReturn};
use crate::state::pending::Pending;
use crate::state::request::Request;

// The timer of a queue: it finds the late requests, and asks the driver about each.

/// Shortest time between two runs of the timer: the resolution of its clock.
const TICK: Duration = Duration::from_millis(4);

impl<T> TagSlot<T> {
    fn start(&self, rq: &Request, now: Stamp, after: Duration) {
        self.op_len.store(rq.len() << 3 | rq.op().index() as u64, Ordering::Relaxed);
        self.offset.store(rq.offset(), Ordering::Relaxed);
        self.since.store(now.nanos(), Ordering::Relaxed);
        self.state.start(now.plus(after));
    }

    /// Describes the late request, while the caller holds the tag.
    fn timed_out<'a>(&self, core: &'a Core, hctx: usize, tag: u32, now: Stamp) -> TimedOut<'a> {
        let op_len = self.op_len.load(Ordering::Relaxed);
        TimedOut {
            queue: &core.name,
            which: LateOne::of(core.address(), hctx, tag),
            op: Op::ALL.get((op_len & 7) as usize).copied().unwrap_or(Op::Read),
            offset: self.offset.load(Ordering::Relaxed),
            len: op_len >> 3,
            waited: now.since(Stamp::from_nanos(self.since.load(Ordering::Relaxed))),
        }
    }
}

impl Timeouts {
    /// Creates timeouts that give each request `after`.
    pub(crate) fn new(after: Duration, core: Weak<Core>, wq: Option<&Workqueue>) -> Self {
        let timer = wq.map(|wq| {
            let work = Work::new(move || {
                // The owner of the last request of a queue that was dropped keeps its core alive.
                if let Some(core) = core.upgrade() {
                    core.timer_fires();
                }
            });
            (wq.clone(), work)
        });
        Self { after, watch: Watch::new(), timer }
    }

    /// Records that the driver is about to get the request of `tag` (Start).
    #[inline]
    pub(crate) fn start(&self, hctx: &Hctx, tag: u32, rq: &Request) {
        hctx.slots[tag as usize].start(rq, Stamp::coarse(), self.after);
        if self.watch.started() {
            self.set_timer(self.after);
        }
    }

    #[cold]
    fn set_timer(&self, delay: Duration) {
        if let Some((wq, work)) = &self.timer {
            if let Err(error) = wq.queue_delayed(work, delay.max(TICK)) {
                // Nothing is run any more, late or not.
                tracing::debug!(%error, "no timer for block requests; late ones are not noticed");
            }
        }
    }
}

impl Core {
    fn timer_fires(self: &Arc<Self>) {
        let Some(timeouts) = &self.timeouts else { return };
        let now = Stamp::coarse();
        let (_, next) = self.look_for_late(timeouts, now, true);
        if let Some(next) = next {
            timeouts.set_timer(next.since(now));
            return;
        }
        timeouts.watch.disarm();
        // Look, once more: behind DisarmFence.
        if let Some(next) = self.earliest() {
            if timeouts.watch.arm() {
                timeouts.set_timer(next.since(now));
            }
        }
    }

    /// Acts as if the timer fired at `now`, and returns how many requests were late. For queues
    /// that are run by hand.
    pub(crate) fn step_timeouts(self: &Arc<Self>, now: Stamp) -> usize {
        self.timeouts.as_ref().map_or(0, |timeouts| self.look_for_late(timeouts, now, false).0)
    }

    /// Returns the earliest deadline of the requests that the driver has.
    fn earliest(&self) -> Option<Stamp> {
        let slots = self.hctxs().flat_map(|hctx| &hctx.slots);
        slots.filter_map(|slot| slot.state.deadline()).min()
    }

    /// Asks the driver about each late request. Returns how many there were, and the earliest
    /// deadline of those that the driver still has.
    fn look_for_late(
        self: &Arc<Self>,
        timeouts: &Timeouts,
        now: Stamp,
        others_run: bool,
    ) -> (usize, Option<Stamp>) {
        let is_late =
            |slot: &TagSlot<Box<Pending>>| slot.state.deadline().is_some_and(|by| by <= now);
        let mut told = 0;
        for hctx in self.hctxs() {
            if !hctx.slots.iter().any(is_late) {
                continue;
            }
            // Settle: a request that was late a moment ago was started before, but the driver may
            // still be about to take it. A request started from here on has a deadline behind
            // `now`.
            if others_run && hctx.state.is_running() {
                context::blocking("block timeouts", || hctx.grace.wait(&hctx.state));
            }
            for (tag, slot) in hctx.slots.iter().enumerate() {
                if slot.state.hold(now) {
                    told += 1;
                    self.tell(timeouts, hctx, tag as u32, slot, now);
                }
            }
        }
        (told, self.earliest())
    }

    /// Asks the driver about a request whose tag is held, and lets go of the tag.
    fn tell(
        self: &Arc<Self>,
        timeouts: &Timeouts,
        hctx: &Hctx,
        tag: u32,
        slot: &TagSlot<Box<Pending>>,
        now: Stamp,
    ) {
        let late = slot.timed_out(self, hctx.index(), tag, now);
        hctx.count_timeout();
        let answer = caught(|| self.driver.timeout(&late)).unwrap_or_else(|| {
            tracing::error!(queue = %self.name, "the driver panicked in timeout");
            TimerReturn::ResetTimer
        });
        let how = match answer {
            TimerReturn::Done => Release::Told,
            TimerReturn::ResetTimer => Release::Until(now.plus(timeouts.after)),
        };
        if let Some(pending) = slot.state.release(how) {
            // The request completed meanwhile, most likely in the callback.
            pending.settle();
        }
    }
}
