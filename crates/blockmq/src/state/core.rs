//! The data of a queue, and of its hardware queues. It outlives the handle: requests inside need
//! it.

use std::sync::{Arc, OnceLock, Weak};

use corewise_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::inbox::Inbox;
use corewise_sync::{Mutex, Throttle};
use corewise_workqueue::{EndNotice, Work, Workqueue};

use crate::admission::end::EndOfWorkers;
use crate::admission::flusher::Flusher;
use crate::admission::gate::{Grace, RunGate};
use crate::admission::run_state::RunState;
use crate::admission::usage::Usage;
use crate::percpu::cache::Cache;
use crate::percpu::map::{CtxMap, Layout, SoftwareQueues};
use crate::request::geometry::Geometry;
use crate::request::limits::Limits;
use crate::request::read_only::ReadOnlyLatch;
use crate::sched::IoScheduler;
use crate::state::backlog::{Backlog, RunnerList};
use crate::state::driver::Driver;
use crate::state::lanes::Placement;
use crate::state::late::{TagSlot, Timeouts};
use crate::state::pending::Pending;
use crate::stats::{Counters, HctxStats, IoStats, PerSlot, RunnerStats, bump};
use crate::tags::TagUser;

/// The inside of a queue. The [`Queue`](crate::Queue) has it, each request that is inside, and a
/// worker for as long as it runs.
pub(crate) struct Core {
    pub(crate) name: Box<str>,
    /// The driver's.
    pub(crate) kind: &'static str,
    /// What the queue takes: see [`outer`](crate::request::limits::outer). Its size is that at the
    /// beginning.
    pub(crate) geometry: Geometry,
    /// A: the device's size in bytes, which only grows. Release, when the driver has grown; Acquire
    /// where a request is taken.
    pub(crate) size: AtomicU64,
    /// Whether it has become read-only.
    pub(crate) read_only: ReadOnlyLatch,
    /// L: is the lock, held while the driver grows.
    pub(crate) growing: Mutex<()>,
    /// What the driver takes at once.
    pub(crate) limits: Limits,
    /// The driver gains by merged requests.
    pub(crate) merges: bool,
    /// The driver can be asked for extents.
    pub(crate) knows_extents: bool,
    /// Changes with `fua` go to the driver without, and are flushed then.
    pub(crate) emulates_fua: bool,
    pub(crate) flusher: Flusher<Box<Pending>>,
    /// A: flushes, and durable changes, that failed so that others may be lost. Release, before the
    /// first of them is answered; Acquire where the end of a later one asks.
    pub(crate) losses: AtomicU64,
    /// A: whether one of those has failed behind the last flush that succeeded. Relaxed: for
    /// reports. One flush ends at a time.
    pub(crate) doubt: AtomicBool,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) gate: RunGate,
    /// Which requests are inside.
    pub(crate) usage: Usage,
    pub(crate) layout: Layout,
    pub(crate) software: SoftwareQueues<Box<Pending>>,
    pub(crate) cache: Cache<Box<Pending>>,
    /// Requests that came while the queue was frozen.
    pub(crate) outside: Inbox<Box<Pending>>,
    pub(crate) hctxs: Box<[Hctx]>,
    pub(crate) visitor_stats: PerSlot,
    pub(crate) iostats: IoStats,
    pub(crate) disk: Counters,
    /// Where requests end, if not simply where they are completed.
    pub(crate) placement: Option<Placement>,
    /// Where requests may be in the driver for so long only.
    pub(crate) timeouts: Option<Timeouts>,
    /// A: the queue is being dropped: what is inside and not in the driver completes as gone. Set
    /// once, Release; seen by each runner that claims a hardware queue, or looks again, after that.
    pub(crate) dead: AtomicBool,
    /// A: what is pending needs a worker, and there is none any more: it completes as gone. As
    /// `dead`.
    pub(crate) given_up: AtomicBool,
    /// Which of its errors go to the log.
    pub(crate) errors: Throttle,
    /// Whether there are workers.
    pub(crate) end: EndOfWorkers,
    /// Has it told when they go.
    pub(crate) notice: OnceLock<EndNotice>,
    /// The driver may block: it is run by workers only.
    pub(crate) may_block: bool,
    /// That of each hardware queue.
    pub(crate) scheduler: IoScheduler,
    /// The CPUs are those of this machine.
    pub(crate) live: bool,
    /// Where asynchronous runs go; `None` where a test steps the queue.
    pub(crate) wq: Option<Workqueue>,
}

impl Core {
    /// Its address, by which a [`LateOne`](crate::for_drivers::LateOne) names it.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

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
    pub(crate) hand: RunnerList<Box<Pending>>,
    /// A: length of `backlog` as the runner left it; it may be too large while a runner works,
    /// never too small once one has ended or has armed the tags.
    pub(crate) left: AtomicUsize,
    pub(crate) runner_stats: RunnerStats,
    pub(crate) background: Background,
    /// A: whose turn it is to run this queue from afar; Relaxed, it carries nothing but itself.
    pub(crate) turn: AtomicUsize,
    /// A: it has no CPU. Release where it is set, and Acquire where it is read: it carries `heir`.
    pub(crate) inactive: AtomicBool,
    /// A: the CPU slot that gets its requests while it has no CPU. Set before `inactive`.
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

    /// It has no CPU, a moment ago.
    #[inline]
    pub(crate) fn is_inactive(&self) -> bool {
        self.inactive.load(Ordering::Acquire)
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
        /// The same, some time later. An item of its own, so that its timer keeps no other run
        /// waiting. Made when it is first needed.
        later: OnceLock<Work>,
        core: Weak<Core>,
    },
    /// By a test that calls `step`; every other run only leaves its wish here.
    ByHand {
        /// A: somebody wants a run. Release on set, Acquire on take.
        wanted: AtomicBool,
    },
}
