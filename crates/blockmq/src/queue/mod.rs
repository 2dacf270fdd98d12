//! A queue: a block device made of a driver and the hardware queues in front of it.

mod builder;
mod hold;

use std::fmt;
use std::sync::Arc;

use corewise_topology::{Machine, current_cpu};

use crate::device::{BlockDevice, Geometry};
use crate::driver::Driver;
use crate::hctx::{Core, Hctx, Pending};
use crate::map::{CpuMap, Place};
use crate::policy::{Verdict, judge};
use crate::request::Request;
use crate::runner::Ran;
use crate::stats::HctxStats;

pub use builder::QueueBuilder;

/// A multi-queue block device: per-CPU software queues over the hardware queues of a [`Driver`].
///
/// Submitting takes no lock: a push to the CPU's own inbox, and the dispatch itself where nobody
/// else is dispatching for this hardware queue. How that works, and why no request is left behind
/// when the queue is quiesced and unquiesced meanwhile, is argued in `src/README.md`.
///
/// Requests that wait in a queue which is dropped complete with
/// [`IoErrorKind::Gone`](crate::IoErrorKind::Gone); those that the driver has are finished first.
///
/// Who drops a drained queue (see [`Queue::drain`]) can rely on the driver being dropped when that
/// returns, if nobody else holds it: a file is closed and unlocked then.
///
/// A CPU that goes offline strands nothing: its software queue is emptied by whoever runs the
/// hardware queue next, and every submission runs it.
pub struct Queue {
    core: Arc<Core>,
    hctxs: Box<[Arc<Hctx>]>,
    map: CpuMap,
}

impl Queue {
    /// Starts to build a queue over `driver` for the CPUs that are online in `machine` now.
    pub fn builder(machine: &Machine, driver: Arc<dyn Driver>) -> QueueBuilder {
        QueueBuilder::new(machine, driver)
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.core.driver
    }

    /// How many hardware queues there are.
    pub fn hw_queues(&self) -> usize {
        self.hctxs.len()
    }

    /// The CPUs that submit through hardware queue `hctx`.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn hctx_cpus(&self, hctx: usize) -> &[u32] {
        self.hctxs[hctx].cpus()
    }

    /// Counters of each hardware queue.
    pub fn stats(&self) -> Vec<HctxStats> {
        self.hctxs.iter().map(|h| h.stats()).collect()
    }

    /// As [`BlockDevice::submit`], as if called on `cpu`.
    pub fn submit_on(&self, cpu: u32, rq: Request) {
        let place = self.map.place(cpu);
        if self.insert(place, rq) {
            self.hctxs[place.hctx].visit(place.slot, true);
        }
    }

    /// Checks a request and inserts it; false where it completed at once.
    fn insert(&self, place: Place, mut rq: Request) -> bool {
        match judge(&self.core.geometry, rq.op(), rq.offset(), rq.len(), rq.flags()) {
            Verdict::Queue => {}
            Verdict::Nothing => {
                rq.complete(Ok(()));
                return false;
            }
            Verdict::Refuse(error) => {
                rq.complete(Err(error));
                return false;
            }
        }
        if let Err(error) = rq.prepare() {
            rq.complete(Err(error));
            return false;
        }
        self.hctxs[place.hctx].insert(Pending::new(rq, place.slot));
        true
    }

    fn here(&self) -> Place {
        self.map.place(current_cpu().unwrap_or(0))
    }

    /// Runs hardware queue `hctx` on this thread, if something is pending and nobody else does.
    /// Never blocks; any context. A driver's completion path may call it at will: where there is
    /// nothing to do it costs two loads and a fence, and no lock.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn run(&self, hctx: usize) {
        let here = self.here();
        let slot = if here.hctx == hctx { here.slot } else { 0 };
        self.hctxs[hctx].visit(slot, false);
    }

    /// Has every hardware queue run by workers. Never blocks; any context.
    pub fn run_all_async(&self) {
        for hctx in &self.hctxs {
            hctx.run_async();
        }
    }

    /// One bounded step of hardware queue `hctx`, on this thread: for queues that were built with
    /// [`QueueBuilder::build_by_hand`]. `None` where nobody has wanted a run since the last step.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn step(&self, hctx: usize) -> Option<Ran> {
        self.hctxs[hctx].step()
    }

    /// How many requests are inside: queued or in the driver, roughly while they move.
    pub fn inside(&self) -> u64 {
        self.hctxs.iter().map(|h| h.usage.inside()).sum()
    }
}

impl BlockDevice for Queue {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn submit(&self, rq: Request) {
        let place = self.here();
        if self.insert(place, rq) {
            self.hctxs[place.hctx].visit(place.slot, true);
        }
    }

    fn submit_batch(&self, batch: &mut dyn Iterator<Item = Request>) {
        let place = self.here();
        let mut queued = false;
        for rq in batch {
            queued |= self.insert(place, rq);
        }
        if queued {
            self.hctxs[place.hctx].visit(place.slot, true);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // With nothing inside, whoever still holds a hardware queue is about to let it go: a thread
        // that has just counted its request out, or a worker that found nothing to do. (The caller
        // itself can't be one of them: inside a completion function its request is still inside.)
        if self.inside() == 0 {
            for hctx in &self.hctxs {
                while Arc::strong_count(hctx) > 1 {
                    corewise_sync::thread::yield_now();
                }
            }
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.core.name)
            .field("driver", &self.core.driver.kind())
            .field("hw_queues", &self.hctxs.len())
            .field("inside", &self.inside())
            .field("gate", &self.core.gate)
            .finish_non_exhaustive()
    }
}
