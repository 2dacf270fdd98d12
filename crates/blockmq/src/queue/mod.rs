//! A queue: a block device made of a driver and the hardware queues in front of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::time::Stamp;
use corewise_topology::{CpuId, Machine, Subscription};

use crate::nest;
use crate::request::Op;
use crate::request::error::IoError;
use crate::request::geometry::Geometry;
use crate::request::read_only::ReadOnlyLatch;
use crate::sched::IoScheduler;
use crate::state::core::Core;
use crate::state::driver::BlockDevice;
use crate::state::driver::Driver;
use crate::state::request::Request;
use crate::stats::{DiskStats, HctxStats};

pub use builder::QueueBuilder;
pub use hold::{FreezeGuard, QuiesceGuard};

mod builder;
mod core;
mod follow;
mod hold;
pub(crate) mod plug;

/// A multi-queue block device: per-CPU software queues over the hardware queues of a [`Driver`].
///
/// Submitting takes no lock. It is a push to the CPU's own inbox, and the dispatch itself if no
/// other thread is dispatching for this hardware queue. `src/README.md` explains how that works,
/// and why no request is left behind when the queue is quiesced and unquiesced meanwhile.
///
/// When a queue is dropped, its waiting requests complete with
/// [`IoErrorKind::Gone`](crate::IoErrorKind::Gone); those that the driver has are finished first.
///
/// If a caller drops a drained queue (see [`Queue::drain`]) outside of drivers and completion
/// functions, the driver is dropped when that returns, unless something else holds it. A file is
/// closed and unlocked then.
///
/// A queue follows its machine: a hardware queue that loses its last CPU finishes its driver's
/// requests and passes the rest to another one (`src/queue/follow.md`).
pub struct Queue {
    core: Arc<Core>,
    /// The machine's change notices.
    #[expect(dead_code, reason = "dropping it unsubscribes")]
    follows: Subscription,
}

impl Queue {
    /// Starts to build a queue over `driver` for the CPUs that are online in `machine` now.
    pub fn builder(machine: &Machine, driver: Arc<dyn Driver>) -> QueueBuilder {
        QueueBuilder::new(machine, driver)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.core.driver
    }

    /// Returns the [kind](crate::Info::kind) of the driver.
    pub fn kind(&self) -> &'static str {
        self.core.kind
    }

    /// Returns the number of hardware queues.
    pub fn hw_queues(&self) -> usize {
        self.core.layout.hw_queues()
    }

    /// Returns the CPUs that submit through hardware queue `hctx`.
    ///
    /// Empty if there is no such hardware queue.
    pub fn hctx_cpus(&self, hctx: usize) -> &[CpuId] {
        self.core.layout.cpus_of(hctx)
    }

    /// Returns the counters of each hardware queue.
    pub fn stats(&self) -> Vec<HctxStats> {
        (0..self.hw_queues()).map(|hctx| self.core.stats(hctx)).collect()
    }

    /// Returns the order in which requests that wait for a tag get one.
    pub fn scheduler(&self) -> IoScheduler {
        self.core.scheduler
    }

    /// Grows the device while requests flow: to `size` bytes, or, if that is `None`, to the present
    /// size of its medium. Returns the new size, which [`geometry`](crate::BlockDevice::geometry)
    /// has from then on. Devices that were built over it know the old one. May block.
    ///
    /// # Errors
    /// The errors are those of [`Driver::grow`](crate::Driver::grow). The size then stays the same.
    pub fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        corewise_sync::context::might_block("Queue::grow");
        self.core.grow(size)
    }

    /// Returns the disk's counters.
    pub fn disk_stats(&self) -> DiskStats {
        self.core.disk.read()
    }

    /// Submits as [`BlockDevice::submit`] does, but never waits: if the queue is frozen or full,
    /// the request comes back unchanged. (The kernel's `REQ_NOWAIT`.)
    ///
    /// # Errors
    /// The request, if the queue is [frozen](NowaitError::Frozen) or [full](NowaitError::Full).
    pub fn submit_nowait(&self, rq: Request) -> Result<(), RefusedRequest> {
        let (core, slot) = (&self.core, self.core.here());
        let refused = |rq, error| Err(RefusedRequest { request: Box::new(rq), error });
        // This comes before the check for room: outside of a frozen queue it may be full, too.
        if core.usage.is_frozen() {
            return refused(rq, NowaitError::Frozen);
        }
        if !core.usage.has_room(slot) {
            return refused(rq, NowaitError::Full);
        }
        let Some(generation) = core.usage.enter(slot) else {
            return refused(rq, NowaitError::Frozen);
        };
        match core.accept(slot, rq) {
            Some(mut pending) => {
                pending.generation = generation;
                core.send(pending);
            }
            None => core.usage.exit(slot, generation),
        }
        Ok(())
    }

    /// Runs hardware queue `hctx` on this thread, if something is pending and no other thread does.
    /// Never blocks; any context. A driver's completion path may call it at will: if there is
    /// nothing to do, it costs two loads and a fence, and no lock.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn run(&self, hctx: usize) {
        self.core.hctx(hctx).visit(&self.core, self.core.here(), false);
    }

    /// Returns the number of requests inside: queued or in the driver, roughly while they move.
    pub fn inside(&self) -> u64 {
        self.core.usage.inside()
    }

    /// Returns true if a flush, or a change with `fua`, has failed so that earlier changes may be
    /// lost, as [`losses`](BlockDevice::losses) counts it, and no flush has succeeded since. Any
    /// context.
    pub fn is_in_doubt(&self) -> bool {
        self.core.is_in_doubt()
    }

    /// Returns a lower bound of the age of the oldest request inside; `None` if there is none. Call
    /// it once a second or more often: the age of a request counts from the first call after its
    /// submission that comes a second after the one before. Requests pay nothing for it. Any
    /// context that may take a lock for a moment.
    pub fn oldest(&self) -> Option<Duration> {
        self.core.usage.oldest(Stamp::coarse())
    }
}

impl BlockDevice for Queue {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn geometry(&self) -> Geometry {
        self.core.geometry()
    }

    fn submit(&self, rq: Request) {
        if plug::is_plugged() && rq.op() != Op::Flush {
            return plug::hold(&self.core, rq);
        }
        let slot = self.core.here();
        self.core.make_room(slot);
        self.core.submit(slot, rq);
    }

    fn losses(&self) -> u64 {
        self.core.losses()
    }

    fn is_outdated(&self) -> bool {
        self.core.driver.is_outdated()
    }

    fn read_only_latch(&self) -> ReadOnlyLatch {
        self.core.read_only.clone()
    }

    fn submit_batch(&self, batch: &mut dyn Iterator<Item = Request>) {
        self.core.submit_all(batch);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Requests that this thread holds back are answered here rather than when it unplugs.
        plug::let_go();
        self.core.kill();
        // With nothing inside, a thread that still holds the core is about to release it. It has
        // just counted its request out, or is a worker that found nothing to do. In a dispatch or
        // in the end of a request, the caller itself may be one of them.
        if self.inside() == 0 && !nest::is_inside() {
            while Arc::strong_count(&self.core) > 1 {
                corewise_sync::thread::yield_now();
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.core.name)
            .field("driver", &self.core.kind)
            .field("hw_queues", &self.hw_queues())
            .field("inside", &self.inside())
            .field("gate", &self.core.gate)
            .finish_non_exhaustive()
    }
}

// The errors by which a queue refuses a request.

/// The reason why a queue didn't take a request from a submitter that doesn't wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NowaitError {
    /// The queue has as many requests of this CPU as it [takes](crate::QueueBuilder::nr_requests).
    /// There is room once some of them have completed.
    Full,
    /// The queue is frozen. It takes requests again once the last [guard](crate::FreezeGuard) is
    /// dropped.
    Frozen,
}

impl fmt::Display for NowaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => {
                "not submitted: the queue has as many requests of this CPU as it takes: \
                 submit it again when some have completed"
            }
            Self::Frozen => {
                "not submitted: somebody keeps the queue frozen: submit it again once it is unfrozen"
            }
        })
    }
}

impl std::error::Error for NowaitError {}

/// A request that a queue didn't take, with the reason: see
/// [`Queue::submit_nowait`](crate::Queue::submit_nowait).
#[non_exhaustive]
pub struct RefusedRequest {
    /// The request, as it was.
    pub request: Box<Request>,
    /// The reason.
    pub error: NowaitError,
}

impl fmt::Debug for RefusedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl fmt::Display for RefusedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RefusedRequest {}
