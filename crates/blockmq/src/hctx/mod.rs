//! A hardware queue: its tags, and the dispatch that feeds the driver from the software queues of its CPUs.
//!
//! Life of a request: `Core::insert` counts it in and pushes it to its CPU's software queue; `visit` runs
//! the queue; the runner's `pass` collects, gives each request a tag and hands it to the driver;
//! when the driver is done with it, `Pending::end` frees the tag, calls the completion function and counts the
//! request out (`complete/README.md`).

pub(crate) mod alone;
mod backlog;
mod dispatch;
mod hand;
mod run;

use std::sync::{OnceLock, Weak};

use corewise_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::Inbox;
use corewise_workqueue::Workqueue;

use crate::ctx::CtxMap;
use crate::grace::Grace;
use crate::hotplug::Activity;
use crate::pending::Pending;
use crate::queue::Core;
use crate::run_state::RunState;
use crate::sched::IoScheduler;
use crate::stats::{HctxStats, RunnerStats, bump};
use crate::tags::TagUser;
use crate::timeout::TagSlot;
pub(crate) use backlog::Backlog;
use hand::Hand;
use run::Background;

/// One hardware queue. It lives as long as its queue's core, which is passed to whatever needs it.
pub(crate) struct Hctx {
    index: usize,
    /// Which software queues hold something for it.
    pub(crate) ctxs: CtxMap,
    pub(crate) state: RunState,
    pub(crate) grace: Grace,
    pub(crate) tags: TagUser,
    /// Each tag's state, where requests may time out; else none.
    pub(crate) slots: Box<[TagSlot]>,
    /// Requests that the driver had and gave back: they go before all others.
    pub(crate) requeued: Inbox<Box<Pending>>,
    /// P: owned by the holder of RUNNING in `state`. Requests that were collected and not started.
    backlog: UnsafeCell<Backlog>,
    /// What the runner holds beside the backlog.
    hand: Hand,
    /// A: length of `backlog` as the runner left it; it may be too large while a runner works, never
    /// too small once one has ended or has armed the tags.
    left: AtomicUsize,
    runner_stats: RunnerStats,
    background: Background,
    /// A: whose turn it is to run this queue from afar; Relaxed, it carries nothing but itself.
    turn: AtomicUsize,
    /// Whether it has a CPU.
    pub(crate) activity: Activity,
    /// A: the CPU slot that gets its requests while it has none. Set before the mark in `activity`, which carries it.
    heir: AtomicUsize,
    /// A: Relaxed counter of what is rare.
    timeouts: AtomicU64,
    /// A: as `timeouts`.
    requeues: AtomicU64,
}

// SAFETY: `backlog` is the only field that isn't Sync by itself. It is touched by the holder of
// RUNNING only: claims and ends are AcqRel read-modify-writes of one word, so each runner's
// accesses happen before the next one's. Its items are Send.
unsafe impl Sync for Hctx {}

impl Hctx {
    /// Makes a hardware queue of a queue with `slots` CPUs, run by workers of `wq`, or by hand.
    pub(crate) fn new(
        index: usize,
        core: Weak<Core>,
        slots: usize,
        tags: TagUser,
        scheduler: IoScheduler,
        wq: &Option<Workqueue>,
        timeouts: bool,
    ) -> Self {
        let background = match wq {
            Some(wq) => {
                let (wq, work) = (wq.clone(), run::work(&core, index));
                Background::Workers { wq, work, later: OnceLock::new(), core }
            }
            None => Background::ByHand { wanted: AtomicBool::new(false) },
        };
        Self {
            index,
            ctxs: CtxMap::new(slots),
            state: RunState::new(),
            grace: Grace::new(),
            slots: (0..if timeouts { tags.depth() } else { 0 })
                .map(|_| TagSlot::default())
                .collect(),
            tags,
            requeued: Inbox::new(),
            backlog: UnsafeCell::new(Backlog::new(scheduler)),
            hand: Hand::new(),
            left: AtomicUsize::new(0),
            runner_stats: RunnerStats::default(),
            background,
            turn: AtomicUsize::new(0),
            activity: Activity::new(),
            heir: AtomicUsize::new(0),
            timeouts: AtomicU64::new(0),
            requeues: AtomicU64::new(0),
        }
    }

    /// The CPU slot that gets its requests while it has no CPU.
    pub(crate) fn heir(&self) -> usize {
        self.heir.load(Ordering::Relaxed)
    }

    /// Names the heir. Under the layout's `changing`.
    pub(crate) fn set_heir(&self, slot: usize) {
        self.heir.store(slot, Ordering::Relaxed);
    }

    /// Its number.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn count_timeout(&self) {
        bump(&self.timeouts);
    }

    pub(crate) fn count_requeue(&self) {
        bump(&self.requeues);
    }

    /// Something may be pending. Any thread; only loads.
    pub(crate) fn has_pending(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
            || self.ctxs.has_pending()
            || !self.requeued.is_empty()
    }

    /// The counters that don't belong to a CPU.
    pub(crate) fn stats(&self) -> HctxStats {
        let in_flight = u64::from(self.tags.in_use());
        let dispatched = self.runner_stats.dispatched.load(Ordering::Relaxed);
        let requeues = self.requeues.load(Ordering::Relaxed);
        HctxStats {
            dispatched,
            completed: dispatched.saturating_sub(in_flight + requeues),
            in_flight,
            merged: self.runner_stats.merged.load(Ordering::Relaxed),
            requeues,
            timeouts: self.timeouts.load(Ordering::Relaxed),
            tag_waits: self.runner_stats.tag_waits.load(Ordering::Relaxed),
            busy: self.runner_stats.busy.load(Ordering::Relaxed),
            runs: self.runner_stats.runs.load(Ordering::Relaxed),
            reruns: self.runner_stats.reruns.load(Ordering::Relaxed),
            ..HctxStats::default()
        }
    }
}
