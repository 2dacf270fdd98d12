//! The state of a disk that its session and its rings share.

use std::sync::Arc;

use corewise_blockmq::{BlockDevice, Geometry, IoError, Op};
use corewise_export::{Counts, Limiter, MemoryPool, SharedDevice};
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::{CachePadded, Throttle};

use crate::options::Options;

/// The state of a disk that its session and its rings share.
pub(crate) struct DiskShared {
    pub(crate) export: Arc<SharedDevice>,
    /// Limit for all rings together.
    pub(crate) limiter: Option<Arc<Limiter>>,
    pub(crate) options: Options,
    pub(crate) memory: MemoryBudget,
    /// The counters of each ring.
    pub(crate) counters: Vec<CachePadded<RingCounters>>,
    /// A: true until the first frontend has brought or got its record. Relaxed.
    first: AtomicBool,
    /// A: set once the disk takes no more requests. Relaxed: each ring is woken after it is set.
    closing: AtomicBool,
    /// Limit of what the guest and the frontend can make the log say.
    log: Throttle,
    /// Limit of messages about failures of the device.
    failures: Throttle,
}

impl DiskShared {
    pub(crate) fn new(export: Arc<SharedDevice>, options: Options) -> Self {
        let counters = (0..options.queues).map(|_| CachePadded::default()).collect();
        let (most, pool) = (options.memory, options.pool.clone());
        let memory = MemoryBudget { used: AtomicU64::new(0), most, pool };
        Self {
            limiter: Limiter::new(options.rate).map(Arc::new),
            export,
            options,
            memory,
            counters,
            first: AtomicBool::new(true),
            closing: AtomicBool::new(false),
            log: Throttle::new(),
            failures: Throttle::new(),
        }
    }

    /// Returns true at the first call: the frontend may have had a former server.
    pub(crate) fn is_first_guest(&self) -> bool {
        self.first.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        self.export.device()
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.device().geometry()
    }

    pub(crate) fn name(&self) -> &str {
        self.device().name()
    }

    /// Makes the rings take no more requests. The caller wakes them.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Logs a fault of the guest or the frontend, if the limit allows it.
    pub(crate) fn fault(&self, what: &'static str, ring: Option<usize>, why: &str) {
        self.log.tell(|| {
            let (disk, why) = (self.name().to_owned(), why.to_owned());
            move |left_out: Option<u64>| {
                tracing::warn!(disk, ring, left_out, "{what}: {why}");
            }
        });
    }

    /// Logs that the device failed a request, if the limit allows it.
    pub(crate) fn failure(&self, ring: usize, op: Op, offset: u64, error: &IoError) {
        self.failures.tell(|| {
            let (disk, error) = (self.name().to_owned(), error.clone());
            move |left_out: Option<u64>| {
                tracing::warn!(disk, ring, %op, offset, %error, left_out,
                    "a request of the guest failed");
            }
        });
    }

    /// Logs how many faults were left out.
    pub(crate) fn log_left_out(&self) {
        self.log.take_left_out().tell(|times| {
            tracing::warn!(disk = self.name(), times, "more faults of the guest were left out");
        });
        self.failures.take_left_out().tell(|times| {
            tracing::warn!(disk = self.name(), times, "more failed requests were left out");
        });
    }
}

/// The bytes of reads and writes in flight.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    /// A: bytes in use. Relaxed: a number.
    used: AtomicU64,
    most: u64,
    /// Memory that other clients share, if there is such memory.
    pool: Option<Arc<dyn MemoryPool>>,
}

impl MemoryBudget {
    /// Takes `bytes`. Returns false if there aren't as many.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= self.most
            && self.pool.as_ref().is_none_or(|pool| pool.try_take(bytes));
        if !fits {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn give(&self, bytes: u64) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            self.pool.iter().for_each(|pool| pool.give_back(bytes));
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// The counters of one ring, which its thread alone changes.
#[derive(Debug, Default)]
pub(crate) struct RingCounters {
    pub(crate) counts: Counts,
    /// A: requests without an operation of the device that were answered with an error. Relaxed, as
    /// all here: numbers.
    pub(crate) faults: AtomicU64,
    /// A: requests in flight.
    pub(crate) in_flight: AtomicU64,
    /// A: interrupts sent to the guest.
    pub(crate) interrupts: AtomicU64,
}

impl RingCounters {
    /// Adds to a counter, whose only writer is the caller.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}
