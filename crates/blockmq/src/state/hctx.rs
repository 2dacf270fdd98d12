//! A hardware queue: its tags, its words, and what its runner holds.

use std::sync::{OnceLock, Weak};

use corewise_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::Inbox;
use corewise_workqueue::{Work, Workqueue};

use crate::admission::activity::Activity;
use crate::admission::grace::Grace;
use crate::admission::run_state::RunState;
use crate::percpu::ctx::CtxMap;
use crate::state::backlog::Backlog;
use crate::state::core::Core;
use crate::state::hand::Hand;
use crate::state::late::TagSlot;
use crate::state::pending::Pending;
use crate::stats::{HctxStats, RunnerStats, bump};
use crate::tags::TagUser;

/// One hardware queue. It lives as long as its queue's core, which is passed to whatever needs it.
pub(crate) struct Hctx {
    pub(crate) index: usize,
    /// Which software queues hold something for it.
    pub(crate) ctxs: CtxMap,
    pub(crate) state: RunState,
    pub(crate) grace: Grace,
    pub(crate) tags: TagUser,
    /// Each tag's state, where requests may time out; else none.
    pub(crate) slots: Box<[TagSlot<Box<Pending>>]>,
    /// Requests that the driver had and gave back: they go before all others.
    pub(crate) requeued: Inbox<Box<Pending>>,
    /// P: owned by the holder of RUNNING in `state`. Requests that were collected and not started.
    pub(crate) backlog: UnsafeCell<Backlog<Box<Pending>>>,
    /// What the runner holds beside the backlog.
    pub(crate) hand: Hand<Box<Pending>>,
    /// A: length of `backlog` as the runner left it; it may be too large while a runner works, never
    /// too small once one has ended or has armed the tags.
    pub(crate) left: AtomicUsize,
    pub(crate) runner_stats: RunnerStats,
    pub(crate) background: Background,
    /// A: whose turn it is to run this queue from afar; Relaxed, it carries nothing but itself.
    pub(crate) turn: AtomicUsize,
    /// Whether it has a CPU.
    pub(crate) activity: Activity,
    /// A: the CPU slot that gets its requests while it has none. Set before the mark in `activity`, which carries it.
    pub(crate) heir: AtomicUsize,
    /// A: Relaxed counter of what is rare.
    pub(crate) timeouts: AtomicU64,
    /// A: as `timeouts`.
    pub(crate) requeues: AtomicU64,
}

// SAFETY: `backlog` is the only field that isn't Sync by itself. It is touched by the holder of
// RUNNING only: claims and ends are AcqRel read-modify-writes of one word, so each runner's
// accesses happen before the next one's. Its items are Send.
unsafe impl Sync for Hctx {}

impl Hctx {
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

/// How a hardware queue is run by nobody in particular.
pub(crate) enum Background {
    /// By a worker.
    Workers {
        wq: Workqueue,
        work: Work,
        /// The same, some time later. An item of its own, so that its timer keeps no other run waiting.
        /// Made when it is first needed.
        later: OnceLock<Work>,
        core: Weak<Core>,
    },
    /// By a test that calls `step`; every other run only leaves its wish here.
    ByHand {
        /// A: somebody wants a run. Release on set, Acquire on take.
        wanted: AtomicBool,
    },
}
