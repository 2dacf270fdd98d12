//! A queue: a block device made of a driver and the hardware queues in front of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::context;
use corewise_topology::{Machine, current_cpu};
use corewise_workqueue::Workqueue;

use crate::device::{BlockDevice, Geometry};
use crate::driver::Driver;
use crate::gate::{RunGate, Unquiesced};
use crate::hctx::{Core, Hctx, Pending};
use crate::map::{CpuMap, CpuPlace, Place};
use crate::policy::{Verdict, judge};
use crate::request::Request;
use crate::runner::{Ran, Source};
use crate::stats::HctxStats;
use crate::usage::Usage;

/// Makes a [`Queue`].
#[must_use = "a builder does nothing until it builds"]
pub struct QueueBuilder {
    machine: Machine,
    driver: Arc<dyn Driver>,
    name: Option<String>,
    hw_queues: Option<usize>,
    depth: Option<u32>,
}

impl QueueBuilder {
    /// The name under which logs and errors speak of the device; else the driver's kind.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// At most this many hardware queues; also at most as many as the driver has room for, and as
    /// there are CPUs.
    pub fn hw_queues(mut self, n: usize) -> Self {
        self.hw_queues = Some(n);
        self
    }

    /// At most this many requests of each hardware queue in the driver at once; also at most the
    /// driver's own depth.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Builds the queue; asynchronous runs go to `wq`.
    pub fn build(self, wq: &Workqueue) -> Arc<Queue> {
        self.make(Some(wq))
    }

    /// Builds a queue that nothing runs but [`Queue::step`]: for tests that choose the order of
    /// events themselves, on one thread.
    pub fn build_by_hand(self) -> Arc<Queue> {
        self.make(None)
    }

    fn make(self, wq: Option<&Workqueue>) -> Arc<Queue> {
        let driver = self.driver;
        let room = driver.hw_queues().max(1);
        let map = CpuMap::new(places(&self.machine), self.hw_queues.unwrap_or(room).clamp(1, room));
        let depth = self.depth.unwrap_or(u32::MAX).min(driver.depth()).max(1);
        let core = Arc::new(Core {
            name: self.name.unwrap_or_else(|| driver.kind().to_owned()).into(),
            geometry: driver.geometry(),
            driver,
            gate: RunGate::new(),
        });
        let hctxs =
            (0..map.hw_queues()).map(|h| Hctx::new(&core, h, map.cpus(h), depth, wq)).collect();
        Arc::new(Queue { core, hctxs, map })
    }
}

/// The online CPUs in the order in which hardware queues divide them.
fn places(machine: &Machine) -> Vec<CpuPlace> {
    let topology = machine.topology();
    machine
        .online()
        .iter()
        .filter_map(|cpu| topology.cpu(cpu))
        .map(|c| CpuPlace {
            node: c.node.unwrap_or(u32::MAX),
            llc: c.llc.unwrap_or(u32::MAX),
            core: c.core.unwrap_or(c.cpu),
            cpu: c.cpu,
        })
        .collect()
}

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
        QueueBuilder { machine: machine.clone(), driver, name: None, hw_queues: None, depth: None }
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
        let len = rq.len() as usize;
        if let Some(buffer) = rq.buffer() {
            buffer.reserve(len);
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

    /// Keeps requests from the driver until [`Queue::unquiesce`], nested; returns once no dispatch
    /// is in progress. Requests are still taken in, and wait; those that the driver has already may
    /// still be in flight and complete.
    ///
    /// May block, though not for long: for one pass of each hardware queue.
    ///
    /// # Panics
    /// Inside an atomic section, that is in a driver's `queue_request` or in a completion function:
    /// there it could only wait for itself. Use [`Queue::quiesce_nowait`] there.
    #[track_caller]
    pub fn quiesce(&self) {
        refuse_in_atomic_section("quiesce", "quiesce_nowait");
        self.quiesce_nowait();
        self.wait_quiesced();
    }

    /// As [`Queue::quiesce`] without the wait: a dispatch may still be in progress. To quiesce many
    /// queues, call this on each and then [`Queue::wait_quiesced`] on each. Any context.
    pub fn quiesce_nowait(&self) {
        self.core.gate.quiesce();
    }

    /// Waits until no dispatch is in progress that began before this call. May block.
    ///
    /// # Panics
    /// As [`Queue::quiesce`].
    #[track_caller]
    pub fn wait_quiesced(&self) {
        refuse_in_atomic_section("wait_quiesced", "quiesce_nowait");
        for hctx in &self.hctxs {
            if hctx.state.is_running() {
                context::blocking("quiesce", || hctx.grace.wait(&hctx.state));
            }
        }
    }

    /// Undoes one quiesce. The last one lets workers run every hardware queue on which requests
    /// arrived meanwhile, and returns true. One too many changes nothing and is logged. Never
    /// blocks; any context.
    pub fn unquiesce(&self) -> bool {
        match self.core.gate.unquiesce() {
            Unquiesced::Opened => {
                // Look: behind the gate's OpenFence.
                for hctx in &self.hctxs {
                    hctx.run_if_pending();
                }
                true
            }
            Unquiesced::Nested => false,
            Unquiesced::Underflow => {
                tracing::warn!(queue = %self.core.name, "unquiesce without a quiesce; ignored");
                false
            }
        }
    }

    /// Whether somebody keeps the queue quiesced, a moment ago.
    pub fn is_quiesced(&self) -> bool {
        !self.core.gate.is_open()
    }

    /// Asks for no more dispatch of hardware queue `hctx`: for a driver whose device is full. It
    /// promises nothing about a dispatch in progress; use [`Queue::quiesce`] for that. Not nested.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn stop(&self, hctx: usize) {
        self.hctxs[hctx].state.stop();
    }

    /// Undoes [`Queue::stop`], and has a worker run what arrived meanwhile. Any context. It costs some
    /// microseconds (a [heavy fence](corewise_sync::fence::heavy)): a driver that is full for moments at a time
    /// says [busy](crate::Dispatch::Busy) instead.
    ///
    /// # Panics
    /// If there is no such hardware queue.
    pub fn start(&self, hctx: usize) {
        let hctx = &self.hctxs[hctx];
        if hctx.state.start() {
            hctx.run_if_pending();
        }
    }

    /// Lets no request in until [`Queue::unfreeze`], nested, and waits until all that are in have
    /// completed and their completion functions have returned. Requests that are submitted
    /// meanwhile wait outside; `submit` doesn't block.
    ///
    /// May block for as long as the driver needs. While the queue is quiesced with requests in it,
    /// that is until somebody unquiesces it.
    ///
    /// # Panics
    /// Inside an atomic section, where it might wait for itself.
    #[track_caller]
    pub fn freeze(&self) {
        refuse_in_atomic_section("freeze", "start_freeze");
        self.start_freeze();
        context::blocking("freeze", || self.hctxs.iter().for_each(|h| h.usage.wait_empty()));
    }

    /// As [`Queue::freeze`], for at most `timeout`. True: frozen and empty. False: time ran out,
    /// and the queue is as it was before the call.
    ///
    /// # Panics
    /// As [`Queue::freeze`].
    #[track_caller]
    pub fn freeze_timeout(&self, timeout: Duration) -> bool {
        refuse_in_atomic_section("freeze_timeout", "start_freeze");
        self.start_freeze();
        let deadline = std::time::Instant::now().checked_add(timeout);
        let empty = context::blocking("freeze", || {
            self.hctxs.iter().all(|h| {
                let left = deadline.map_or(Duration::MAX, |d| {
                    d.saturating_duration_since(std::time::Instant::now())
                });
                h.usage.wait_empty_timeout(left)
            })
        });
        if !empty {
            self.unfreeze();
        }
        empty
    }

    /// The first half of [`Queue::freeze`]: lets nobody in, waits for nothing. Any context.
    pub fn start_freeze(&self) {
        Usage::start_freeze(self.hctxs.iter().map(|hctx| &hctx.usage));
        // What is inside has to get out, so it is run once more.
        self.run_all_async();
        if self.is_quiesced() && self.hctxs.iter().any(|h| h.has_pending()) {
            tracing::warn!(
                queue = %self.core.name,
                "frozen while quiesced with requests inside: nothing moves until it is unquiesced"
            );
        }
    }

    /// Undoes one freeze; the last one lets in who waits outside and returns true. One too many
    /// changes nothing and is logged. Never blocks; any context.
    pub fn unfreeze(&self) -> bool {
        let done = Usage::unfreeze(self.hctxs.iter().map(|hctx| &hctx.usage));
        // Each hardware queue is owed something, so this can't stop at the first false.
        let hctxs = self.hctxs.iter().zip(done);
        hctxs.filter(|(hctx, done)| !hctx.unfrozen(*done)).count() == 0
    }

    /// Waits until every request that was submitted before has completed; those submitted
    /// meanwhile wait until the drain is over. Blocks as [`Queue::freeze`].
    ///
    /// # Panics
    /// As [`Queue::freeze`].
    #[track_caller]
    pub fn drain(&self) {
        refuse_in_atomic_section("drain", "start_freeze");
        self.freeze();
        self.unfreeze();
    }

    /// As [`Queue::drain`], for at most `timeout`: true where everything has completed.
    ///
    /// # Panics
    /// As [`Queue::freeze`].
    #[track_caller]
    pub fn drain_timeout(&self, timeout: Duration) -> bool {
        refuse_in_atomic_section("drain_timeout", "start_freeze");
        let empty = self.freeze_timeout(timeout);
        if empty {
            self.unfreeze();
        }
        empty
    }

    /// How many requests are inside: queued or in the driver, roughly while they move.
    pub fn inside(&self) -> u64 {
        self.hctxs.iter().map(|h| h.usage.inside()).sum()
    }
}

#[track_caller]
fn refuse_in_atomic_section(what: &str, instead: &str) {
    assert!(
        !context::in_atomic_section(),
        "Queue::{what} inside an atomic section (a dispatch or a completion): it would wait for \
         itself; call {instead} here and wait elsewhere"
    );
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
