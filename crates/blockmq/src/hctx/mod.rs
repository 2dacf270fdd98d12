//! A hardware queue: its tags, and the dispatch that feeds the driver from the software queues of
//! its CPUs.
//!
//! The way of a request: `Core::insert` counts it in and pushes it to its CPU's software queue;
//! `visit` runs the queue. The runner's `pass` collects requests, gives each a tag and passes it to
//! the driver. When the driver has finished it, `Pending::end` frees the tag, calls the completion
//! function and counts the request out (`complete/README.md`).

mod remap;
pub(crate) mod run;

use std::sync::{OnceLock, Weak};

use corewise_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::Inbox;
use corewise_workqueue::Workqueue;

use crate::admission::gate::Grace;
use crate::admission::run_state::RunState;
use crate::nest;
use crate::percpu::map::CtxMap;
use crate::sched::IoScheduler;
use crate::state::backlog::{Backlog, RunnerList};
use crate::state::core::{Background, Core, Hctx};
use crate::state::late::TagSlot;
use crate::stats::RunnerStats;
use crate::tags::TagUser;

impl nest::Runs for Hctx {}

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
            hand: RunnerList::new(),
            left: AtomicUsize::new(0),
            runner_stats: RunnerStats::default(),
            background,
            turn: AtomicUsize::new(0),
            inactive: AtomicBool::new(false),
            heir: AtomicUsize::new(0),
            timeouts: AtomicU64::new(0),
            requeues: AtomicU64::new(0),
        }
    }
}
