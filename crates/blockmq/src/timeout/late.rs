//! The timer of a queue: it finds the requests whose time is up, and asks the driver about each.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::context;
use corewise_sync::panics::caught;
use corewise_sync::time::Stamp;
use corewise_workqueue::{Work, Workqueue};

use super::{Release, TagState, Watch};
use crate::hctx::Hctx;
use crate::pending::Pending;
use crate::queue::Core;
use crate::request::{Op, Request};

/// The timer doesn't run again sooner than this: as exact as the clock is that it goes by.
const TICK: Duration = Duration::from_millis(4);

/// What a driver says of a request whose time is up: [`Driver::timeout`](crate::Driver::timeout).
/// (Linux: `blk_eh_timer_return`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum TimerReturn {
    /// The driver has completed it, or will: it isn't told of this request again.
    Done,
    /// The request gets the same time once more.
    ResetTimer,
}

/// A request that the driver has had for too long. It is named by its hardware queue and tag: the driver has the
/// request itself. Until the callback returns, no other request gets the tag, even where this one completes
/// meanwhile.
#[derive(Clone, Copy)]
pub struct TimedOut<'a> {
    core: &'a Core,
    hctx: usize,
    tag: u32,
    op: Op,
    offset: u64,
    len: u64,
    waited: Duration,
}

/// Which request is late, as plain values: it may be asked for on another thread, as long as its tag is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateOne {
    /// The address of its queue's core, which each of the queue's requests keeps alive.
    core: usize,
    hctx: usize,
    tag: u32,
}

impl LateOne {
    pub(crate) fn of(core: &Core, hctx: usize, tag: u32) -> Self {
        Self { core: std::ptr::from_ref(core).addr(), hctx, tag }
    }
}

impl TimedOut<'_> {
    /// Names the request by plain values.
    pub fn which(&self) -> LateOne {
        LateOne::of(self.core, self.hctx, self.tag)
    }

    /// The queue's name.
    pub fn queue(&self) -> &str {
        &self.core.name
    }

    /// Index of its hardware queue.
    pub fn hctx(&self) -> usize {
        self.hctx
    }

    /// Its tag; see [`Started::tag`](crate::Started::tag).
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// What it asks for.
    pub fn op(&self) -> Op {
        self.op
    }

    /// First byte of its range.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of its range in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a flush.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// For how long the driver has had it, to a timer tick.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl fmt::Debug for TimedOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for TimedOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TimedOut { hctx, tag, op, offset, len, waited, .. } = self;
        let name = self.queue();
        write!(
            f,
            "{name}: {op} of {len} bytes at {offset} (hardware queue {hctx}, tag {tag}) has been in \
             the driver for {waited:.1?}"
        )
    }
}

/// A tag's state, and what its request asks for: the request itself is the driver's.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct TagSlot {
    pub(crate) state: TagState<Box<Pending>>,
    /// A: written before `state` says that the driver has the request, read while it is held. Relaxed: `state`
    /// orders them. The operation's index is in the low bits. (A length is below 2^61: devices are.)
    op_len: AtomicU64,
    /// A: as `op_len`.
    offset: AtomicU64,
    /// A: as `op_len`; when the driver got it.
    since: AtomicU64,
}

impl TagSlot {
    fn start(&self, rq: &Request, now: Stamp, after: Duration) {
        self.op_len.store(rq.len() << 3 | rq.op().index() as u64, Ordering::Relaxed);
        self.offset.store(rq.offset(), Ordering::Relaxed);
        self.since.store(now.nanos(), Ordering::Relaxed);
        self.state.start(now.plus(after));
    }

    /// The caller holds it.
    fn timed_out<'a>(&self, core: &'a Core, hctx: usize, tag: u32, now: Stamp) -> TimedOut<'a> {
        let op_len = self.op_len.load(Ordering::Relaxed);
        TimedOut {
            core,
            hctx,
            tag,
            op: Op::ALL.get((op_len & 7) as usize).copied().unwrap_or(Op::Read),
            offset: self.offset.load(Ordering::Relaxed),
            len: op_len >> 3,
            waited: now.since(Stamp::from_nanos(self.since.load(Ordering::Relaxed))),
        }
    }
}

/// The timeouts of a queue.
pub(crate) struct Timeouts {
    after: Duration,
    watch: Watch,
    /// `None` where a test steps the queue.
    timer: Option<(Workqueue, Work)>,
}

impl Timeouts {
    /// Requests get `after` each.
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

    /// Start: the driver is about to get the request of `tag`.
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

    /// As if the timer fired at `now`: how many requests were late. For queues that are run by hand.
    pub(crate) fn step_timeouts(self: &Arc<Self>, now: Stamp) -> usize {
        self.timeouts.as_ref().map_or(0, |timeouts| self.look_for_late(timeouts, now, false).0)
    }

    /// The earliest deadline of the requests that the driver has.
    fn earliest(&self) -> Option<Stamp> {
        let slots = self.hctxs().flat_map(|hctx| &hctx.slots);
        slots.filter_map(|slot| slot.state.deadline()).min()
    }

    /// Asks the driver about each request whose time is up. How many there were, and the earliest deadline of those
    /// that the driver still has.
    fn look_for_late(
        self: &Arc<Self>,
        timeouts: &Timeouts,
        now: Stamp,
        others_run: bool,
    ) -> (usize, Option<Stamp>) {
        let is_late = |slot: &TagSlot| slot.state.deadline().is_some_and(|by| by <= now);
        let mut told = 0;
        for hctx in self.hctxs() {
            if !hctx.slots.iter().any(is_late) {
                continue;
            }
            // Settle: who was late a moment ago was started before, but perhaps the driver is still about to take
            // it. A request started from here on has a deadline behind `now`.
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

    /// Asks the driver about a request that is held, and lets go of it.
    fn tell(
        self: &Arc<Self>,
        timeouts: &Timeouts,
        hctx: &Hctx,
        tag: u32,
        slot: &TagSlot,
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
            // It completed meanwhile, most likely in the callback.
            pending.settle();
        }
    }
}
