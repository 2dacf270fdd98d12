//! A hardware queue: its tags, and the dispatch that feeds the driver from the software queues of its CPUs.
//!
//! Life of a request: `Core::insert` counts it in and pushes it to its CPU's software queue; `visit` runs
//! the queue; the runner's `pass` collects, gives each request a tag and hands it to the driver;
//! `Pending::complete` frees the tag, calls the completion function and counts the request out.

mod backlog;
mod dispatch;
mod run;

use std::sync::Weak;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_workqueue::{Work, Workqueue};

use crate::ctx::CtxMap;
use crate::grace::Grace;
use crate::hotplug::Activity;
use crate::queue::Core;
use crate::run_state::RunState;
use crate::sched::IoScheduler;
use crate::stats::{HctxStats, RunnerStats};
use crate::tags::TagUser;
pub(crate) use backlog::Backlog;
use run::Background;

/// One hardware queue. It lives as long as its queue's core, which is passed to whatever needs it.
pub(crate) struct Hctx {
    index: usize,
    /// Which software queues hold something for it.
    pub(crate) ctxs: CtxMap,
    pub(crate) state: RunState,
    pub(crate) grace: Grace,
    pub(crate) tags: TagUser,
    /// P: owned by the holder of RUNNING in `state`. Requests that were collected and not started.
    backlog: UnsafeCell<Backlog>,
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
    ) -> Self {
        let background = match wq {
            Some(wq) => {
                let work = || {
                    let core = Weak::clone(&core);
                    Work::new(move || {
                        // A queue that was dropped has nothing left to run.
                        if let Some(core) = Weak::upgrade(&core) {
                            core.hctx(index).run_as_worker(&core);
                        }
                    })
                };
                Background::Workers { wq: wq.clone(), work: work(), later: work() }
            }
            None => Background::ByHand { wanted: AtomicBool::new(false) },
        };
        Self {
            index,
            ctxs: CtxMap::new(slots),
            state: RunState::new(),
            grace: Grace::new(),
            tags,
            backlog: UnsafeCell::new(Backlog::new(scheduler)),
            left: AtomicUsize::new(0),
            runner_stats: RunnerStats::default(),
            background,
            turn: AtomicUsize::new(0),
            activity: Activity::new(),
            heir: AtomicUsize::new(0),
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

    /// Something may be pending. Any thread; only loads.
    pub(crate) fn has_pending(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0 || self.ctxs.has_pending()
    }

    /// The counters that don't belong to a CPU.
    pub(crate) fn stats(&self) -> HctxStats {
        let in_flight = u64::from(self.tags.in_use());
        let dispatched = self.runner_stats.dispatched.load(Ordering::Relaxed);
        HctxStats {
            dispatched,
            completed: dispatched.saturating_sub(in_flight),
            in_flight,
            merged: self.runner_stats.merged.load(Ordering::Relaxed),
            tag_waits: self.runner_stats.tag_waits.load(Ordering::Relaxed),
            busy: self.runner_stats.busy.load(Ordering::Relaxed),
            ..HctxStats::default()
        }
    }
}
