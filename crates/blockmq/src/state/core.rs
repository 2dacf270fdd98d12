//! The data of a queue and of its hardware queues. The data outlives the handle, since requests
//! inside need it.

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
use crate::state::completer::Placement;
use crate::state::driver::Driver;
use crate::state::late::{TagSlot, Timeouts};
use crate::state::pending::Pending;
use crate::stats::{Counters, HctxStats, IoStats, PerSlot, RunnerStats, bump};
use crate::tags::TagUser;

/// The inside of a queue. The [`Queue`](crate::Queue), each request inside, and each running worker
/// keep it alive.
pub(crate) struct Core {
    pub(crate) name: Box<str>,
    /// The driver's kind.
    pub(crate) kind: &'static str,
    /// The geometry that the queue offers: see [`outer`](crate::request::limits::outer). Its size
    /// is that at the beginning.
    pub(crate) geometry: Geometry,
    /// A: the device's size in bytes, which only grows. Release after the driver has grown; Acquire
    /// where a request is taken.
    pub(crate) size: AtomicU64,
    /// Latch that is set once the device has become read-only.
    pub(crate) read_only: ReadOnlyLatch,
    /// L: is the lock, held while the driver grows.
    pub(crate) growing: Mutex<()>,
    /// The driver's limits for one request.
    pub(crate) limits: Limits,
    /// True if the driver gains by merged requests.
    pub(crate) merges: bool,
    /// True if the driver can be asked for extents.
    pub(crate) knows_extents: bool,
    /// True if the queue strips `fua` from a change for the driver, and flushes after it.
    pub(crate) emulates_fua: bool,
    pub(crate) flusher: Flusher<Box<Pending>>,
    /// A: number of failed flushes and durable changes after which other changes may be lost.
    /// Release before the first of these changes is answered; Acquire where a later one ends.
    pub(crate) losses: AtomicU64,
    /// A: true after such a failure, until a flush succeeds. Relaxed: for reports. One flush ends
    /// at a time.
    pub(crate) doubt: AtomicBool,
    pub(crate) driver: Arc<dyn Driver>,
    /// True if a request may go to the device below without a tag: see
    /// [`Driver::remap`](crate::Driver::remap).
    pub(crate) may_remap: bool,
    pub(crate) gate: RunGate,
    /// The counts of the requests inside.
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
    /// The placement of completions; `None`: requests end where they are completed.
    pub(crate) placement: Option<Placement>,
    /// The timeouts, if requests may be in the driver for a limited time only.
    pub(crate) timeouts: Option<Timeouts>,
    /// A: true once the queue is being dropped. Requests that are inside and not in the driver then
    /// complete as gone. Set once, Release; a runner that claims a hardware queue, or looks again,
    /// after that sees it.
    pub(crate) dead: AtomicBool,
    /// A: true once pending requests need a worker and the pools have ended. These requests
    /// complete as gone. Ordering as `dead`.
    pub(crate) given_up: AtomicBool,
    /// The throttle of the errors that go to the log.
    pub(crate) errors: Throttle,
    /// The record of whether there are workers.
    pub(crate) end: EndOfWorkers,
    /// The notice that the pools have ended.
    pub(crate) notice: OnceLock<EndNotice>,
    /// True if the driver may block. Workers alone run such a driver.
    pub(crate) may_block: bool,
    /// The scheduler of each hardware queue.
    pub(crate) scheduler: IoScheduler,
    /// True if the CPUs are those of this machine.
    pub(crate) live: bool,
    /// The workqueue of asynchronous runs; `None` if a test steps the queue.
    pub(crate) wq: Option<Workqueue>,
}

impl Core {
    /// Returns the core's address, by which a [`LateOne`](crate::for_drivers::LateOne) names it.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// One hardware queue. It lives as long as its queue's core. Each function that needs the core gets
/// it as an argument.
pub(crate) struct Hctx {
    pub(crate) index: usize,
    /// The map of the software queues that hold something for this hardware queue.
    pub(crate) ctxs: CtxMap,
    pub(crate) state: RunState,
    pub(crate) grace: Grace,
    pub(crate) tags: TagUser,
    /// Each tag's state, if requests may time out; else empty.
    pub(crate) slots: Box<[TagSlot<Box<Pending>>]>,
    /// Requests that the driver gave back. They go before all others.
    pub(crate) requeued: Inbox<Box<Pending>>,
    /// P: owned by the holder of RUNNING in `state`. Requests that were collected and not started.
    pub(crate) backlog: UnsafeCell<Backlog<Box<Pending>>>,
    /// Requests that the runner holds beside the backlog.
    pub(crate) hand: RunnerList<Box<Pending>>,
    /// A: length of `backlog` as the runner left it. It may be too large while a runner works, and
    /// is never too small once a runner has ended or has armed the tags.
    pub(crate) left: AtomicUsize,
    pub(crate) runner_stats: RunnerStats,
    pub(crate) background: Background,
    /// A: the worker whose turn it is to run this queue. Relaxed: it orders nothing else.
    pub(crate) turn: AtomicUsize,
    /// A: true while the hardware queue has no CPU. Release where it is set, Acquire where it is
    /// read: it carries `heir`.
    pub(crate) inactive: AtomicBool,
    /// A: the CPU slot that gets the requests while this hardware queue has no CPU. Set before
    /// `inactive`.
    pub(crate) heir: AtomicUsize,
    /// A: number of timeouts, Relaxed: a counter of rare events.
    pub(crate) timeouts: AtomicU64,
    /// A: number of requeues, as `timeouts`.
    pub(crate) requeues: AtomicU64,
}

// SAFETY: `backlog` is the only field that isn't Sync by itself. Only the holder of RUNNING touches
// it. Claims and ends are AcqRel read-modify-writes of one word, so each runner's accesses happen
// before the next one's. Its items are Send.
unsafe impl Sync for Hctx {}

impl Hctx {
    /// Returns the CPU slot that gets the requests while this hardware queue has no CPU.
    pub(crate) fn heir(&self) -> usize {
        self.heir.load(Ordering::Relaxed)
    }

    /// Sets the heir. The caller holds the layout's `changing`.
    pub(crate) fn set_heir(&self, slot: usize) {
        self.heir.store(slot, Ordering::Relaxed);
    }

    /// Returns true if the hardware queue had no CPU a moment ago.
    #[inline]
    pub(crate) fn is_inactive(&self) -> bool {
        self.inactive.load(Ordering::Acquire)
    }

    /// Returns the hardware queue's number.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn count_timeout(&self) {
        bump(&self.timeouts);
    }

    pub(crate) fn count_requeue(&self) {
        bump(&self.requeues);
    }

    /// Returns true if something may be pending. Any thread; only loads.
    pub(crate) fn has_pending(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
            || self.ctxs.has_pending()
            || !self.requeued.is_empty()
    }

    /// Returns the counters that don't belong to a CPU.
    pub(crate) fn stats(&self) -> HctxStats {
        let in_flight = u64::from(self.tags.in_use());
        let dispatched = self.runner_stats.dispatched.load(Ordering::Relaxed);
        let requeues = self.requeues.load(Ordering::Relaxed);
        HctxStats {
            dispatched,
            completed: dispatched.saturating_sub(in_flight + requeues),
            in_flight,
            merged: self.runner_stats.merged.load(Ordering::Relaxed),
            remapped: self.runner_stats.remapped.load(Ordering::Relaxed),
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

/// The runner of a hardware queue that no submitter runs.
pub(crate) enum Background {
    /// Workers of a workqueue.
    Workers {
        wq: Workqueue,
        work: Work,
        /// The item that runs the queue some time later, made when it is first needed. It is an
        /// item of its own, so that its timer delays no other run.
        later: OnceLock<Work>,
        core: Weak<Core>,
    },
    /// A test that calls `step`. Every other run only sets `wanted`.
    ByHand {
        /// A: true if a run is wanted. Release where it is set, Acquire where it is taken.
        wanted: AtomicBool,
    },
}
