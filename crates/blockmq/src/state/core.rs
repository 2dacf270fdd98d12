//! What outlives the handle of a queue: everything that a request inside still needs.

use std::sync::{Arc, OnceLock};

use corewise_sync::atomic::{AtomicBool, AtomicU64};
use corewise_sync::inbox::Inbox;
use corewise_sync::{Mutex, Throttle};
use corewise_workqueue::{EndNotice, Workqueue};

use crate::admission::end::End;
use crate::admission::flusher::Flusher;
use crate::admission::gate::RunGate;
use crate::admission::usage::Usage;
use crate::percpu::cache::Cache;
use crate::percpu::ctx::SoftwareQueues;
use crate::percpu::layout::Layout;
use crate::request::geometry::Geometry;
use crate::request::limits::Limits;
use crate::request::read_only::ReadOnlyLatch;
use crate::sched::IoScheduler;
use crate::state::driver::Driver;
use crate::state::hctx::Hctx;
use crate::state::lanes::Placement;
use crate::state::late::Timeouts;
use crate::state::pending::Pending;
use crate::stats::{Counters, IoStats, PerSlot};

/// The inside of a queue. The [`Queue`](crate::Queue) has it, each request that is inside, and a worker for as
/// long as it runs.
pub(crate) struct Core {
    pub(crate) name: Box<str>,
    /// What the queue takes: see [`outer`](crate::request::limits::outer). Its size is that at the beginning.
    pub(crate) geometry: Geometry,
    /// A: the device's size in bytes, which only grows. Release, when the driver has grown; Acquire where a request is taken.
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
    /// A: flushes, and durable changes, that failed so that others may be lost. Release, before the first of them is answered; Acquire
    /// where the end of a later one asks.
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
    /// A: the queue is being dropped: what is inside and not in the driver completes as gone. Set once, Release;
    /// seen by each runner that claims a hardware queue, or looks again, after that.
    pub(crate) dead: AtomicBool,
    /// A: what is pending needs a worker, and there is none any more: it completes as gone. As `dead`.
    pub(crate) given_up: AtomicBool,
    /// Which of its errors go to the log.
    pub(crate) errors: Throttle,
    /// Whether there are workers.
    pub(crate) end: End,
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
