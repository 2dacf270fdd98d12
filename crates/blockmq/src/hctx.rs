//! A hardware queue: its software queues, its tags, and the dispatch that feeds the driver.
//!
//! Life of a request: `insert` counts it in and pushes it to its CPU's software queue; `visit` runs
//! the queue; the runner's `pass` collects, gives each request a tag and hands it to the driver;
//! `finish` frees the tag, calls the completion function and counts the request out.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use corewise_sync::Parker;
use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::context::{self, AtomicSection};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_topology::current_cpu;
use corewise_workqueue::{Work, Workqueue};

use crate::ctx::SoftwareQueues;
use crate::device::Geometry;
use crate::driver::{Dispatch, Driver, Started};
use crate::error::IoError;
use crate::gate::RunGate;
use crate::grace::Grace;
use crate::policy::{BUDGET_VISITOR, BUDGET_WORKER, BUSY_PAUSE, PASS_QUOTA};
use crate::request::{Request, caught};
use crate::run_state::RunState;
use crate::runner::{self, Pass, Ran, Source};
use crate::stats::{HctxStats, PerSlot, RunnerStats, bump};
use crate::tags::{Freed, Tags};
use crate::usage::{Unfrozen, Usage};

/// A request on its way to the driver and back.
pub(crate) struct Pending {
    link: Link,
    pub(crate) rq: Request,
    /// The software queue through which it came, and through which it is counted out.
    slot: usize,
}

impl Pending {
    pub(crate) fn new(rq: Request, slot: usize) -> Box<Self> {
        Box::new(Self { link: Link::new(), rq, slot })
    }
}

// SAFETY: `link` returns the one field of `self`, which no other value returns.
unsafe impl HasLink for Pending {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// What all hardware queues of a queue share; immutable but for the gate.
pub(crate) struct Core {
    pub(crate) name: Box<str>,
    pub(crate) geometry: Geometry,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) gate: RunGate,
}

/// How a hardware queue is run by nobody in particular.
pub(crate) enum Background {
    /// By a worker.
    Workers { wq: Workqueue, work: Work },
    /// By a test that calls `step`; every other run only leaves its wish here.
    ByHand {
        /// A: somebody wants a run. Release on set, Acquire on take.
        wanted: AtomicBool,
    },
}

/// One hardware queue.
pub(crate) struct Hctx {
    index: usize,
    /// The CPUs that submit here, by slot.
    cpus: Box<[u32]>,
    pub(crate) core: Arc<Core>,
    software: SoftwareQueues<Box<Pending>>,
    pub(crate) state: RunState,
    pub(crate) grace: Grace,
    tags: Tags,
    pub(crate) usage: Usage,
    /// Requests that came while the queue was frozen.
    outside: Inbox<Box<Pending>>,
    /// P: owned by the holder of RUNNING in `state`. Requests that were collected and not started;
    /// they go first.
    list: UnsafeCell<VecDeque<Box<Pending>>>,
    /// A: length of `list` as the runner left it; it may be too large while a runner works, never
    /// too small once one has ended or has armed the tags.
    left: AtomicUsize,
    runner_stats: RunnerStats,
    visitor_stats: PerSlot,
    background: Background,
    /// A: whose turn it is to run this queue from afar; Relaxed, it carries nothing but itself.
    turn: AtomicUsize,
}

// SAFETY: `list` is the only field that isn't Sync by itself. It is touched by the holder of
// RUNNING only: claims and ends are AcqRel read-modify-writes of one word, so each runner's
// accesses happen before the next one's. Its items are Send.
unsafe impl Sync for Hctx {}

impl Hctx {
    /// Makes a hardware queue, run by workers of `wq`, or by hand.
    pub(crate) fn new(
        core: &Arc<Core>,
        index: usize,
        cpus: &[u32],
        depth: u32,
        wq: Option<&Workqueue>,
    ) -> Arc<Self> {
        let slots = cpus.len();
        Arc::new_cyclic(|weak| {
            let background = match wq {
                Some(wq) => {
                    let weak = weak.clone();
                    let work = Work::new(move || {
                        // A queue that was dropped has nothing left to run.
                        if let Some(hctx) = Weak::upgrade(&weak) {
                            Hctx::run_as_worker(&hctx);
                        }
                    });
                    Background::Workers { wq: wq.clone(), work }
                }
                None => Background::ByHand { wanted: AtomicBool::new(false) },
            };
            Hctx {
                index,
                cpus: cpus.into(),
                core: Arc::clone(core),
                software: SoftwareQueues::new(slots),
                state: RunState::new(),
                grace: Grace::new(),
                tags: Tags::new(depth),
                usage: Usage::new(slots),
                outside: Inbox::new(),
                list: UnsafeCell::new(VecDeque::new()),
                left: AtomicUsize::new(0),
                runner_stats: RunnerStats::default(),
                visitor_stats: PerSlot::new(slots),
                background,
                turn: AtomicUsize::new(0),
            }
        })
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Takes a request in; the caller then runs the queue with `visit`. Lock-free.
    pub(crate) fn insert(&self, pending: Box<Pending>) {
        let mut pending = pending;
        loop {
            if self.usage.enter(pending.slot) {
                let slot = pending.slot;
                self.software.push(slot, pending);
                return;
            }
            // Park, ParkFence (see `usage.rs`): either we see the thaw, or the thaw sees us.
            self.outside.push(pending);
            if self.usage.is_frozen_fenced() {
                return;
            }
            // Thawed meanwhile, and the thaw may have missed us: let in whoever is outside. All
            // but the last are inserted by recursion of depth one through `let_in`.
            let mut outside = self.outside.take();
            let Some(first) = outside.next() else { return };
            for other in outside {
                self.insert(other);
            }
            pending = first;
        }
    }

    /// Lets in who waits outside; the caller then runs the queue.
    fn let_in(&self) {
        for pending in self.outside.take() {
            self.insert(pending);
        }
    }

    /// What an unfreeze owes a hardware queue, by what it did to it; true where it was the last.
    pub(crate) fn unfrozen(&self, done: Unfrozen) -> bool {
        match done {
            Unfrozen::Thawed => {
                self.let_in();
                self.run_async();
                true
            }
            Unfrozen::Nested => false,
            Unfrozen::Underflow => {
                tracing::warn!(queue = %self.core.name, "unfreeze without a freeze; ignored");
                false
            }
        }
    }

    /// Runs the queue on this thread, if there is need and nobody else does. `published`: the
    /// caller knows that something is pending. Never blocks, any context.
    pub(crate) fn visit(self: &Arc<Self>, slot: usize, published: bool) {
        match &self.background {
            Background::Workers { .. } => {
                let ran = self.run(published, BUDGET_VISITOR);
                self.account(slot, ran);
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    /// Has the queue run by a worker, soon. Never blocks, any context.
    pub(crate) fn run_async(&self) {
        match &self.background {
            Background::Workers { wq, work } => {
                // Here, if here is one of ours; else each of ours in turn, so that the first CPU
                // doesn't do everybody's work. False means that it is queued already, and will run
                // after this moment.
                let _ = match current_cpu() {
                    Some(cpu) if self.cpus.contains(&cpu) => wq.queue(work),
                    _ => {
                        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                        wq.queue_on(self.cpus[turn % self.cpus.len()], work)
                    }
                };
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    fn run_as_worker(self: &Arc<Self>) {
        let ran = self.run(false, BUDGET_WORKER);
        if let Ran::Busy { .. } = ran {
            // Nobody will tell us, so we have to ask again, though not with a core of our own.
            // Whoever submits meanwhile asks too, and so does a completion.
            let pause = || Parker::new().park_timeout(BUSY_PAUSE);
            context::blocking("a busy block driver", pause);
        }
        self.account(0, ran);
    }

    /// One bounded step, by hand: `None` where nobody wanted a run since the last one.
    pub(crate) fn step(self: &Arc<Self>) -> Option<Ran> {
        if let Background::ByHand { wanted } = &self.background
            && !wanted.swap(false, Ordering::Acquire)
        {
            return None;
        }
        let ran = self.run(false, 1);
        self.account(0, ran);
        Some(ran)
    }

    fn run(self: &Arc<Self>, published: bool, budget: u32) -> Ran {
        runner::run(&self.core.gate, &self.state, &self.grace, self, published, budget)
    }

    fn account(&self, slot: usize, ran: Ran) {
        let stats = self.visitor_stats.of(slot);
        match ran {
            Ran::Refused => bump(&stats.refused),
            Ran::Joined => bump(&stats.joined),
            Ran::Done { passes } | Ran::HandOver { passes } | Ran::Busy { passes } => {
                bump(&stats.runs);
                if passes > 1 {
                    stats.reruns.fetch_add(u64::from(passes - 1), Ordering::Relaxed);
                }
            }
        }
        if let Ran::HandOver { .. } | Ran::Busy { .. } = ran {
            bump(&stats.handed_over);
            self.run_async();
        }
    }

    /// The part of an unquiesce or start that this hardware queue owes: OpenFence or StartFence has
    /// been issued by the caller.
    pub(crate) fn run_if_pending(self: &Arc<Self>) {
        if self.has_pending() {
            bump(&self.visitor_stats.of(0).after_unquiesce);
            self.run_async();
        }
    }

    /// Finishes a request that the driver had.
    pub(crate) fn finish(
        this: &Arc<Self>,
        pending: &mut Pending,
        tag: u32,
        result: Result<(), IoError>,
    ) {
        let freed = this.tags.free(tag);
        pending.rq.finish(result);
        if freed == Freed::Restart {
            // The mark was set after `left` was published, and we took it: something is pending.
            this.visit(pending.slot, true);
        }
        this.usage.exit(pending.slot);
    }

    pub(crate) fn stats(&self) -> HctxStats {
        let in_flight = u64::from(self.tags.in_use());
        let dispatched = self.runner_stats.dispatched.load(Ordering::Relaxed);
        let mut stats = HctxStats {
            dispatched,
            completed: dispatched.saturating_sub(in_flight),
            in_flight,
            tag_waits: self.runner_stats.tag_waits.load(Ordering::Relaxed),
            busy: self.runner_stats.busy.load(Ordering::Relaxed),
            ..HctxStats::default()
        };
        self.visitor_stats.sum(&mut stats);
        stats
    }

    /// Publishes what the runner leaves in the list.
    fn publish(&self, list: &VecDeque<Box<Pending>>) {
        // Relaxed: ordered by the read-modify-write that follows (arm, end, hand_over) and by the
        // fences of the run protocol.
        self.left.store(list.len(), Ordering::Relaxed);
    }

    fn tag_for_next(&self, list: &VecDeque<Box<Pending>>) -> Option<u32> {
        if let Some(tag) = self.tags.alloc() {
            return Some(tag);
        }
        RunnerStats::add(&self.runner_stats.tag_waits, 1);
        // Leave, Mark, Retry: what is left has to be visible before the mark, for the free that
        // takes the mark asks nobody else what is pending.
        self.publish(list);
        let _in_use = self.tags.arm();
        self.tags.alloc()
    }
}

impl Source for Arc<Hctx> {
    fn has_pending(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0 || self.software.has_pending()
    }

    fn pass(&self, halted: &dyn Fn() -> bool) -> Pass {
        let mut started = 0;
        let pass = self.list.with_mut(|list| {
            // SAFETY: only the holder of RUNNING calls this, and it alone touches `list` until it
            // ends. What is called below may come back here, but then finds RUNNING set.
            let list = unsafe { &mut *list };
            let pass = self.start_some(list, halted, &mut started);
            self.publish(list);
            pass
        });
        if started != 0 {
            let _section = AtomicSection::enter("commit of a block dispatch");
            if caught(|| self.core.driver.commit(self.index)).is_none() {
                tracing::error!(queue = %self.core.name, "the driver panicked in commit");
            }
        }
        pass
    }
}

impl Hctx {
    fn start_some(
        self: &Arc<Self>,
        list: &mut VecDeque<Box<Pending>>,
        halted: &dyn Fn() -> bool,
        started: &mut u64,
    ) -> Pass {
        let _section = AtomicSection::enter("dispatch of block requests");
        loop {
            if list.is_empty() {
                self.software.collect(list);
            }
            if list.is_empty() {
                return Pass::Idle;
            }
            if *started == u64::from(PASS_QUOTA) || halted() {
                return Pass::More;
            }
            let Some(tag) = self.tag_for_next(list) else { return Pass::Idle };
            let Some(pending) = list.pop_front() else { return Pass::Idle };
            let rq = Started::new(pending, Arc::clone(self), tag);
            let driver = &self.core.driver;
            // Counted before it can complete, so that who has drained the queue sees it counted.
            RunnerStats::add(&self.runner_stats.dispatched, 1);
            match caught(|| driver.queue_request(self.index, rq)) {
                Some(Dispatch::Started) => *started += 1,
                Some(Dispatch::Busy(rq)) => {
                    RunnerStats::add(&self.runner_stats.busy, 1);
                    RunnerStats::add(&self.runner_stats.dispatched, 1u64.wrapping_neg());
                    let (pending, tag) = rq.into_parts();
                    list.push_front(pending);
                    self.tags.put_back(tag);
                    self.publish(list);
                    // The next completion runs the queue again, if there is one to come.
                    return if self.tags.arm() == 0 { Pass::Later } else { Pass::Idle };
                }
                None => {
                    // The unwinding dropped the request, which completed it.
                    *started += 1;
                    tracing::error!(
                        queue = %self.core.name, driver = driver.kind(),
                        "the driver panicked while it started a request"
                    );
                }
            }
        }
    }
}
