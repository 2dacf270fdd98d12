//! Access for models, for tests that choose the order of events themselves, and for benchmarks of
//! single steps: no part of the interface, and hidden from its documentation.
//!
//! It holds the protocol types of the queue, each small enough to be model-checked (`README.md`
//! beside this file argues them), and the means to step a queue by hand.

use std::sync::Arc;

use corewise_sync::time::Stamp;
use corewise_topology::CpuId;

use crate::queue::{Queue, QueueBuilder};
use crate::state::request::Request;
use crate::tags::TagSet;

pub use crate::admission::end::EndOfWorkers;
pub use crate::admission::flusher::Flusher;
pub use crate::admission::gate::{FencedRecheck, Grace, Recheck, RunGate};
pub use crate::admission::run_state::{
    Claim, EndOfRun, PassOutcome, RunNumber, RunOutcome, RunState, Source, run, run_by, run_claimed,
};
pub use crate::admission::tag_state::{Release, TagState, Watch};
pub use crate::admission::usage::Usage;
pub use crate::percpu::cache::{BoxSource, Cache};
pub use crate::percpu::map::{CpuMap, CpuPlace, CtxMap, SoftwareQueues};
pub use crate::tags::{FreeResult, TagBatch, TagUser, TagWaiter, Tags};

/// The builder of a queue that only its holder runs.
pub trait BuildByHand {
    /// Builds a queue that only [`ByHand::step`] runs. It follows the machine too. May block, as
    /// [`QueueBuilder::build`].
    fn build_by_hand(self) -> Arc<Queue>;
}

impl BuildByHand for QueueBuilder {
    #[track_caller]
    fn build_by_hand(self) -> Arc<Queue> {
        self.without_workers()
    }
}

/// The operations on a queue that was built by hand; benchmarks use them on any queue.
pub trait ByHand {
    /// Makes one bounded step of hardware queue `hctx`, on this thread. `None` if no run has been
    /// wanted since the last step. Panics if there is no such hardware queue.
    fn step(&self, hctx: usize) -> Option<RunOutcome>;

    /// Acts as if the timer of a queue with timeouts fired at `now`: asks the driver about each
    /// late request, and returns how many there were.
    fn step_timeouts(&self, now: Stamp) -> usize;

    /// Submits as [`BlockDevice::submit`](crate::BlockDevice::submit) does when called on `cpu`.
    fn submit_on(&self, cpu: CpuId, rq: Request);

    /// Runs a hardware queue as [`Queue::run`] does, with another [second look](Recheck) if the
    /// first one says that there is no need. It measures the cost of that look, and of a lock
    /// there. Never use it on a queue that may be quiesced, unless the second look is as good as
    /// the queue's own.
    fn run_by(&self, hctx: usize, recheck: &impl Recheck);
}

impl ByHand for Queue {
    fn step(&self, hctx: usize) -> Option<RunOutcome> {
        let core = self.core();
        core.hctx(hctx).step(core)
    }

    fn step_timeouts(&self, now: Stamp) -> usize {
        self.core().step_timeouts(now)
    }

    fn submit_on(&self, cpu: CpuId, rq: Request) {
        let core = self.core();
        let slot = core.layout.map.slot(cpu);
        core.make_room(slot);
        core.submit(slot, rq);
    }

    fn run_by(&self, hctx: usize, recheck: &impl Recheck) {
        let core = self.core();
        core.hctx(hctx).visit_by(core, core.here(), false, recheck);
    }
}

/// The line of the waiters for a tag, one step at a time.
pub trait LineUp {
    /// Puts the waiter in line as [`Tags::line_up`] does.
    fn line_up(&self, waiter: &Arc<TagWaiter>, cpu: usize);

    /// Leaves the line as [`Tags::leave`] does.
    fn leave(&self, waiter: &TagWaiter, cpu: usize) -> Option<u32>;
}

impl LineUp for TagSet {
    fn line_up(&self, waiter: &Arc<TagWaiter>, cpu: usize) {
        self.tags().line_up(waiter, cpu);
    }

    fn leave(&self, waiter: &TagWaiter, cpu: usize) -> Option<u32> {
        self.tags().leave(waiter, cpu)
    }
}
