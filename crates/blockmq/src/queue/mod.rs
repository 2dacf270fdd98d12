//! A queue: a block device made of a driver and the hardware queues in front of it.

mod builder;
mod core;
mod hold;
mod layout;
mod update;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corewise_topology::{Machine, Subscription, current_cpu};

use crate::device::{BlockDevice, Geometry};
use crate::driver::Driver;
use crate::pending::Pending;
use crate::policy::{Verdict, judge};
use crate::request::Request;
use crate::runner::Ran;
use crate::stats::HctxStats;

pub use builder::QueueBuilder;
pub(crate) use core::Core;
pub(crate) use hold::refuse_in_atomic_section;

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
/// A queue follows its machine: a hardware queue that loses its last CPU finishes what its driver has and hands
/// the rest on to another one (`src/hotplug/README.md`).
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

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.core.driver
    }

    /// How many hardware queues there are.
    pub fn hw_queues(&self) -> usize {
        self.core.layout.hw_queues()
    }

    /// The CPUs that submit through hardware queue `hctx`.
    ///
    /// Empty where there is no such hardware queue.
    pub fn hctx_cpus(&self, hctx: usize) -> &[u32] {
        self.core.layout.cpus_of(hctx)
    }

    /// Counters of each hardware queue; behind those that are in use come those that were, before an
    /// [update](Queue::update_hw_queues).
    pub fn stats(&self) -> Vec<HctxStats> {
        let n = self.core.hctxs().count();
        (0..n).map(|hctx| self.core.stats(hctx)).collect()
    }

    /// As [`BlockDevice::submit`], as if called on `cpu`.
    pub fn submit_on(&self, cpu: u32, rq: Request) {
        let slot = self.core.layout.map.slot(cpu);
        if let Some(hctx) = self.insert(slot, rq) {
            self.core.hctx(hctx).visit(&self.core, slot, true);
        }
    }

    /// As [`BlockDevice::submit`], except that where the queue is frozen the request comes back, as it is, instead of
    /// waiting outside. (The kernel's `REQ_NOWAIT`.)
    ///
    /// # Errors
    /// The request, where somebody keeps the queue frozen.
    pub fn submit_nowait(&self, rq: Request) -> Result<(), Box<Request>> {
        let (core, slot) = (&self.core, self.here());
        if !core.usage.enter(slot) {
            return Err(Box::new(rq));
        }
        match self.accept(slot, rq) {
            Some(pending) => {
                let hctx = core.push(pending);
                core.hctx(hctx).visit(core, slot, true);
            }
            None => core.usage.exit(slot),
        }
        Ok(())
    }

    /// Checks a request and inserts it; the hardware queue to be run, and `None` where it completed at once or
    /// waits outside.
    fn insert(&self, slot: usize, rq: Request) -> Option<usize> {
        self.core.insert(self.accept(slot, rq)?)
    }

    /// Checks a request and puts it into a box; `None` where it completed at once.
    fn accept(&self, slot: usize, mut rq: Request) -> Option<Box<Pending>> {
        match judge(&self.core.geometry, rq.op(), rq.offset(), rq.len(), rq.flags()) {
            Verdict::Queue => {}
            Verdict::Nothing => {
                rq.complete(Ok(()));
                return None;
            }
            Verdict::Refuse(error) => {
                rq.complete(Err(error));
                return None;
            }
        }
        if let Err(error) = rq.prepare() {
            rq.complete(Err(error));
            return None;
        }
        Some(self.core.pack(rq, slot))
    }

    /// The slot of the CPU that the caller is on.
    fn here(&self) -> usize {
        self.core.layout.map.slot(current_cpu().unwrap_or(0))
    }

    /// Runs hardware queue `hctx` on this thread, if something is pending and nobody else does.
    /// Never blocks; any context. A driver's completion path may call it at will: where there is
    /// nothing to do it costs two loads and a fence, and no lock.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn run(&self, hctx: usize) {
        self.core.hctx(hctx).visit(&self.core, self.here(), false);
    }

    /// Has every hardware queue run by workers after `delay`, if something is pending then. Where such a run is to
    /// come already it comes when it was to: who asks again and again doesn't put it off. Any context.
    pub fn run_all_later(&self, delay: Duration) {
        for hctx in self.core.hctxs() {
            hctx.run_later(delay);
        }
    }

    /// Has every hardware queue run by workers. Never blocks; any context.
    pub fn run_all_async(&self) {
        for hctx in self.core.hctxs() {
            hctx.run_async(&self.core);
        }
    }

    /// One bounded step of hardware queue `hctx`, on this thread: for queues that were built with
    /// [`QueueBuilder::build_by_hand`]. `None` where nobody has wanted a run since the last step.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn step(&self, hctx: usize) -> Option<Ran> {
        self.core.hctx(hctx).step(&self.core)
    }

    /// How many requests are inside: queued or in the driver, roughly while they move.
    pub fn inside(&self) -> u64 {
        self.core.usage.inside()
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
        let slot = self.here();
        if let Some(hctx) = self.insert(slot, rq) {
            self.core.hctx(hctx).visit(&self.core, slot, true);
        }
    }

    fn submit_batch(&self, batch: &mut dyn Iterator<Item = Request>) {
        let slot = self.here();
        let mut owed = None;
        for rq in batch {
            let Some(hctx) = self.insert(slot, rq) else { continue };
            // Another one only where the queue was frozen and its map changed meanwhile.
            if let Some(other) = owed.replace(hctx)
                && other != hctx
            {
                self.core.hctx(other).visit(&self.core, slot, true);
            }
        }
        if let Some(hctx) = owed {
            self.core.hctx(hctx).visit(&self.core, slot, true);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.core.kill();
        // With nothing inside, whoever still holds the core is about to let it go: a thread that has just
        // counted its request out, or a worker that found nothing to do. (The caller itself can't be one of
        // them: inside a completion function its request is still inside.)
        if self.inside() == 0 {
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
            .field("driver", &self.core.driver.kind())
            .field("hw_queues", &self.hw_queues())
            .field("inside", &self.inside())
            .field("gate", &self.core.gate)
            .finish_non_exhaustive()
    }
}
