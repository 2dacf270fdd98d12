//! A hardware queue: its software queues, its tags, and the dispatch that feeds the driver.
//!
//! Life of a request: `insert` counts it in and pushes it to its CPU's software queue; `visit` runs
//! the queue; the runner's `pass` collects, gives each request a tag and hands it to the driver;
//! `finish` frees the tag, calls the completion function and counts the request out.

mod dispatch;
mod finish;
mod insert;
mod run;

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_workqueue::{Work, Workqueue};

use crate::ctx::SoftwareQueues;
use crate::device::Geometry;
use crate::driver::Driver;
use crate::gate::RunGate;
use crate::grace::Grace;
use crate::request::Request;
use crate::run_state::RunState;
use crate::stats::{HctxStats, PerSlot, RunnerStats};
use crate::tags::Tags;
use crate::usage::Usage;
use run::Background;

/// A request on its way to the driver and back.
pub(crate) struct Pending {
    link: Link,
    pub(crate) rq: Request,
    /// The software queue through which it came, and through which it is counted out.
    slot: usize,
}

impl Pending {
    pub(crate) fn new(rq: Request, slot: usize) -> Box<Self> {
        Box::new(Self { link: Link::new(), rq, slot })
    }
}

// SAFETY: `link` returns the one field of `self`, which no other value returns.
unsafe impl HasLink for Pending {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// What all hardware queues of a queue share; immutable but for the gate.
pub(crate) struct Core {
    pub(crate) name: Box<str>,
    pub(crate) geometry: Geometry,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) gate: RunGate,
}
/// One hardware queue.
pub(crate) struct Hctx {
    index: usize,
    /// The CPUs that submit here, by slot.
    cpus: Box<[u32]>,
    pub(crate) core: Arc<Core>,
    software: SoftwareQueues<Box<Pending>>,
    pub(crate) state: RunState,
    pub(crate) grace: Grace,
    tags: Tags,
    pub(crate) usage: Usage,
    /// Requests that came while the queue was frozen.
    outside: Inbox<Box<Pending>>,
    /// P: owned by the holder of RUNNING in `state`. Requests that were collected and not started;
    /// they go first.
    list: UnsafeCell<VecDeque<Box<Pending>>>,
    /// A: length of `list` as the runner left it; it may be too large while a runner works, never
    /// too small once one has ended or has armed the tags.
    left: AtomicUsize,
    runner_stats: RunnerStats,
    visitor_stats: PerSlot,
    background: Background,
    /// A: whose turn it is to run this queue from afar; Relaxed, it carries nothing but itself.
    turn: AtomicUsize,
}

// SAFETY: `list` is the only field that isn't Sync by itself. It is touched by the holder of
// RUNNING only: claims and ends are AcqRel read-modify-writes of one word, so each runner's
// accesses happen before the next one's. Its items are Send.
unsafe impl Sync for Hctx {}

impl Hctx {
    /// Makes a hardware queue, run by workers of `wq`, or by hand.
    pub(crate) fn new(
        core: &Arc<Core>,
        index: usize,
        cpus: &[u32],
        depth: u32,
        wq: Option<&Workqueue>,
    ) -> Arc<Self> {
        let slots = cpus.len();
        Arc::new_cyclic(|weak| {
            let background = match wq {
                Some(wq) => {
                    let weak = weak.clone();
                    let work = Work::new(move || {
                        // A queue that was dropped has nothing left to run.
                        if let Some(hctx) = Weak::upgrade(&weak) {
                            Hctx::run_as_worker(&hctx);
                        }
                    });
                    Background::Workers { wq: wq.clone(), work }
                }
                None => Background::ByHand { wanted: AtomicBool::new(false) },
            };
            Hctx {
                index,
                cpus: cpus.into(),
                core: Arc::clone(core),
                software: SoftwareQueues::new(slots),
                state: RunState::new(),
                grace: Grace::new(),
                tags: Tags::new(depth),
                usage: Usage::new(slots),
                outside: Inbox::new(),
                list: UnsafeCell::new(VecDeque::new()),
                left: AtomicUsize::new(0),
                runner_stats: RunnerStats::default(),
                visitor_stats: PerSlot::new(slots),
                background,
                turn: AtomicUsize::new(0),
            }
        })
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    pub(crate) fn stats(&self) -> HctxStats {
        let in_flight = u64::from(self.tags.in_use());
        let dispatched = self.runner_stats.dispatched.load(Ordering::Relaxed);
        let mut stats = HctxStats {
            dispatched,
            completed: dispatched.saturating_sub(in_flight),
            in_flight,
            tag_waits: self.runner_stats.tag_waits.load(Ordering::Relaxed),
            busy: self.runner_stats.busy.load(Ordering::Relaxed),
            ..HctxStats::default()
        };
        self.visitor_stats.sum(&mut stats);
        stats
    }
}
