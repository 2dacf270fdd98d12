//! The runners of a hardware queue: a visitor, a worker, or a test by hand.

use std::cell::{Cell, RefCell};
use std::sync::Weak;
use std::time::Duration;
use std::{iter, mem};

use corewise_sync::atomic::Ordering;
use corewise_sync::context::AtomicSection;
use corewise_sync::fence::Asymmetric;
use corewise_sync::panics::caught;
use corewise_sync::per_thread;
use corewise_topology::current_cpu;
use corewise_workqueue::{At, Work};

use crate::admission::gate::{FencedRecheck, Recheck};
use crate::admission::run_state;
use crate::admission::run_state::{BUDGET_VISITOR, BUDGET_WORKER, PassOutcome, RunOutcome, Source};
use crate::nest;
use crate::percpu::map::slot_for_run;
use crate::state::backlog::Backlog;
use crate::state::core::{Background, Core, Hctx};
use crate::state::driver::{Dispatch, Started};
use crate::state::pending::Pending;
use crate::stats::{RunnerStats, bump};
use crate::tags::TagBatch;

/// Pause between two tries if the driver is busy with nothing in flight, or the kernel takes
/// nothing from a ring. It is the kernel's (`BLK_MQ_RESOURCE_DELAY`).
const BUSY_PAUSE: Duration = Duration::from_millis(3);

/// Makes the item with which a worker runs hardware queue `index`.
pub(super) fn work(core: &Weak<Core>, index: usize) -> Work {
    let core = Weak::clone(core);
    Work::new(move || {
        // A queue that was dropped has nothing left to run.
        if let Some(core) = Weak::upgrade(&core) {
            core.hctx(index).run_as_worker(&core);
        }
    })
}

impl Hctx {
    /// Runs the queue on this thread, if there is need and no other thread does. `published`: the
    /// caller knows that something is pending. Never blocks, any context.
    pub(crate) fn visit(&self, core: &Core, slot: usize, published: bool) {
        self.visit_by(core, slot, published, &FencedRecheck::<Asymmetric>::new());
    }

    /// Runs the queue as [`Hctx::visit`] does, with another second look if the first one says that
    /// there is no need.
    #[inline]
    pub(crate) fn visit_by(
        &self,
        core: &Core,
        slot: usize,
        published: bool,
        recheck: &impl Recheck,
    ) {
        match &self.background {
            // A driver that may block runs where blocking is allowed, and a deeply nested pass
            // where there is stack.
            Background::Workers { .. } if core.may_block || nest::is_far_down() => {
                self.run_async(core);
            }
            Background::Workers { .. } => {
                let ran = self.run_by(core, published, BUDGET_VISITOR, recheck);
                self.account(core, slot, ran);
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    /// Sends a request to the driver that is inside and lies nowhere yet. If no other thread runs
    /// the queue, this one does, and the request needn't be published and collected. Never blocks,
    /// any context. (The kernel's `blk_mq_try_issue_directly`, which bypasses the scheduler; this
    /// bypasses only the software queue.) If the thread is in a pass of this very queue, that pass
    /// takes the request.
    pub(crate) fn issue(&self, core: &Core, pending: Box<Pending>) {
        let Some(pending) = self.keep(pending) else { return };
        let slot = pending.slot;
        let here = matches!(self.background, Background::Workers { .. }) && !core.may_block;
        if here && !nest::is_far_down() && core.gate.is_open() && self.state.try_claim() {
            // SAFETY: this thread is the runner now.
            unsafe { self.hand.push(pending) };
            let feed = DispatchSource::new(core, self);
            let (state, grace) = (&self.state, &self.grace);
            let ran = nest::dispatch(|| {
                run_state::run_claimed(&core.gate, state, grace, &feed, BUDGET_VISITOR)
            });
            self.decline_tag(core);
            self.account(core, slot, ran);
        } else {
            core.enqueue(pending);
            self.visit(core, slot, true);
        }
    }

    /// Makes a worker run the queue, soon. Never blocks, any context.
    pub(crate) fn run_async(&self, core: &Core) {
        match &self.background {
            Background::Workers { wq, work, .. } => {
                // Queue: the item may be queued already, and then runs after this moment; or there
                // are no workers any more.
                let _ = wq.at(self.place_for_run(core)).queue(work);
                self.unless_alone(core);
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    /// Returns the place where a worker is to run it: here, if this CPU belongs to the hardware
    /// queue; else one of its CPUs in turn; else anywhere.
    fn place_for_run(&self, core: &Core) -> At {
        let layout = &core.layout;
        let here = current_cpu().and_then(|cpu| layout.map.known(cpu));
        if here.is_some_and(|slot| layout.hctx_of(slot) == self.index) {
            return At::Here;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let slot = slot_for_run(layout.slots_of(self.index), |slot| layout.is_online(slot), turn);
        slot.map_or(At::Here, |slot| At::Cpu(layout.map.cpus()[slot]))
    }

    /// Asks, after Queue, whether workers still come; if not, this thread runs the queue (Ask).
    fn unless_alone(&self, core: &Core) {
        if core.end.has_come() {
            if let Background::Workers { core, .. } = &self.background {
                run_without_worker(core, self.index);
            }
        }
    }

    /// Makes a worker run the queue after `delay`, for a thread that has just tried to run it. A
    /// run that is due already comes at its own time instead. (The kernel's
    /// `blk_mq_delay_run_hw_queue`.)
    fn run_after(&self, core: &Core, delay: Duration) {
        match &self.background {
            Background::Workers { wq, later, core: ours, .. } => {
                let later = later.get_or_init(|| work(ours, self.index));
                let _ = wq.mod_delayed(later, delay);
                self.unless_alone(core);
            }
            Background::ByHand { wanted } => wanted.store(true, Ordering::Release),
        }
    }

    pub(super) fn run_as_worker(&self, core: &Core) {
        let ran = self.run(core, false, BUDGET_WORKER);
        self.count(core, core.layout.some_slot_of(self.index), ran);
        match ran {
            RunOutcome::HandOver { .. } => self.run_async(core),
            // No event will tell when the driver has room, so it is asked once more, though not by
            // a busy loop. A submitter and a completion ask meanwhile too.
            RunOutcome::Busy { .. } => self.run_after(core, BUSY_PAUSE),
            RunOutcome::Refused | RunOutcome::Joined | RunOutcome::Done { .. } => {}
        }
    }

    /// Makes one bounded step, by hand; `None` if no run was requested since the last one.
    pub(crate) fn step(&self, core: &Core) -> Option<RunOutcome> {
        if let Background::ByHand { wanted } = &self.background {
            if !wanted.swap(false, Ordering::Acquire) {
                return None;
            }
        }
        let ran = self.run(core, false, 1);
        self.account(core, core.layout.some_slot_of(self.index), ran);
        Some(ran)
    }

    /// Runs until nothing is pending, for a queue that is being dropped.
    pub(crate) fn run_to_the_end(&self, core: &Core) {
        // Joined: that runner looks again after this moment.
        let _ = self.run(core, true, u32::MAX);
    }

    pub(super) fn run(&self, core: &Core, published: bool, budget: u32) -> RunOutcome {
        self.run_by(core, published, budget, &FencedRecheck::<Asymmetric>::new())
    }

    fn run_by(
        &self,
        core: &Core,
        published: bool,
        budget: u32,
        recheck: &impl Recheck,
    ) -> RunOutcome {
        let feed = DispatchSource::new(core, self);
        let (gate, state, grace) = (&core.gate, &self.state, &self.grace);
        let ran = nest::dispatch(|| {
            run_state::run_by(gate, state, grace, &feed, published, budget, recheck)
        });
        if ran != RunOutcome::Joined {
            self.decline_tag(core);
        }
        ran
    }

    fn account(&self, core: &Core, slot: usize, ran: RunOutcome) {
        self.count(core, slot, ran);
        if let RunOutcome::HandOver { .. } | RunOutcome::Busy { .. } = ran {
            self.run_async(core);
        }
    }

    fn count(&self, core: &Core, slot: usize, ran: RunOutcome) {
        let stats = core.visitor_stats.of(slot);
        match ran {
            RunOutcome::Refused => bump(&stats.refused),
            RunOutcome::Joined => bump(&stats.joined),
            RunOutcome::HandOver { .. } | RunOutcome::Busy { .. } => bump(&stats.handed_over),
            // The runner has counted it.
            RunOutcome::Done { .. } => {}
        }
    }

    /// Does this hardware queue's share of an unquiesce: the caller has issued OpenFence.
    pub(crate) fn run_if_pending(&self, core: &Core) {
        if self.has_pending() {
            bump(&core.visitor_stats.of(core.layout.some_slot_of(self.index)).after_unquiesce);
            self.run_async(core);
        }
    }
}

// Runs of hardware queues without workers, once their pools are shut down: on the thread that would
// have queued one.
//
// A run may end requests, whose completion functions run other queues, and so on: that would nest
// as deep as there are queues. And some threads ask under a lock of the queue. So a run that is
// asked for while the thread runs one, or [holds back](hold_back), waits its turn.

per_thread! {
    static HOLDS_BACK: Cell<bool> = Cell::new(false);
    // Weak: a thread that drops a queue waits until no other owner holds its core.
    static DEFERRED_RUNS: RefCell<Vec<(Weak<Core>, usize)>> = RefCell::new(Vec::new());
}

/// Runs a hardware queue on this thread, now or after the run that the thread is in.
#[cold]
fn run_without_worker(core: &Weak<Core>, index: usize) {
    let ask = |all: &RefCell<Vec<(Weak<Core>, usize)>>| {
        let mut all = all.borrow_mut();
        if !all.iter().any(|(other, i)| Weak::ptr_eq(other, core) && *i == index) {
            all.push((Weak::clone(core), index));
        }
    };
    match DEFERRED_RUNS.try_with(ask) {
        Ok(()) => drop(hold_back()),
        // A thread that is about to end has no list.
        Err(_) => run_now(core, index),
    }
}

fn run_now(core: &Weak<Core>, index: usize) {
    // A core that is being dropped has nothing inside.
    if let Some(core) = core.upgrade() {
        core.hctx(index).run_alone(&core);
    }
}

/// Holds back the runs that are asked of this thread, until the guard is dropped: for a thread that
/// has a lock, which is released before that.
pub(crate) fn hold_back() -> RunsHeldBack {
    RunsHeldBack { outermost: HOLDS_BACK.try_with(|held| !held.replace(true)).unwrap_or(false) }
}

/// A guard during which the runs asked of the thread wait.
pub(crate) struct RunsHeldBack {
    outermost: bool,
}

impl Drop for RunsHeldBack {
    fn drop(&mut self) {
        if !self.outermost {
            return;
        }
        let next = || DEFERRED_RUNS.try_with(|all| all.borrow_mut().pop()).ok().flatten();
        // Still held: runs that these ask for come to the same list.
        while let Some((core, index)) = next() {
            run_now(&core, index);
        }
        let _ = HOLDS_BACK.try_with(|held| held.set(false));
    }
}

impl Hctx {
    /// Runs the queue until nothing is left that can go.
    fn run_alone(&self, core: &Core) {
        if core.may_block {
            // This thread may be one that must not block.
            core.give_up();
        }
        loop {
            match self.run(core, false, BUDGET_WORKER) {
                RunOutcome::HandOver { .. } => {}
                // No event will tell, and there is no timer to ask again.
                RunOutcome::Busy { .. } => core.give_up(),
                RunOutcome::Refused | RunOutcome::Joined | RunOutcome::Done { .. } => {
                    return;
                }
            }
        }
    }
}

// Dispatch: the runner's pass over what is pending, which feeds the driver.

/// Number of requests started in one pass, between two looks at others that want to run.
const PASS_QUOTA: u32 = 32;

impl Hctx {
    /// Publishes the requests that the runner leaves.
    fn publish(&self, backlog: &Backlog<Box<Pending>>) {
        // Relaxed: ordered by the read-modify-write that follows (a mark, a place in line, end,
        // hand_over) and by the fences of the run protocol.
        self.left.store(backlog.len(), Ordering::Relaxed);
    }

    /// Takes tags for the next requests, `most` of them at most.
    fn tags_for_next(&self, backlog: &Backlog<Box<Pending>>, cpu: usize, most: u32) -> TagBatch {
        let tags = self.tags.take(cpu, most);
        if !tags.is_empty() {
            return tags;
        }
        RunnerStats::add(&self.runner_stats.tag_waits, 1);
        // Leave, then Mark (or LineUp) and Retry. The requests left have to be visible before: the
        // thread that frees a tag and sees a waiter doesn't ask what is pending.
        self.publish(backlog);
        self.tags.wait(cpu, most)
    }

    /// Returns tags that were taken and not used.
    fn return_tags(&self, cpu: usize, tags: TagBatch) {
        if !tags.is_empty() {
            self.tags.put_back(cpu, tags);
        }
    }

    /// Returns, at the end of a run, an awaited tag that this hardware queue can't use now. If
    /// something is pending and may go, the thread that gave the tag is about to run it.
    pub(super) fn decline_tag(&self, core: &Core) {
        if self.tags.has_grant() && (!core.gate.is_open() || !self.has_pending()) {
            self.tags.decline(0);
        }
    }
}

/// A hardware queue and the queue that it belongs to: what the run protocol runs.
pub(super) struct DispatchSource<'a> {
    core: &'a Core,
    hctx: &'a Hctx,
    /// O: true once it has made a pass.
    ran: Cell<bool>,
}

impl<'a> DispatchSource<'a> {
    pub(super) fn new(core: &'a Core, hctx: &'a Hctx) -> Self {
        Self { core, hctx, ran: Cell::new(false) }
    }
}

impl Source for DispatchSource<'_> {
    fn has_pending(&self) -> bool {
        self.hctx.has_pending()
    }

    fn pass(&self, halted: &dyn Fn() -> bool) -> PassOutcome {
        let DispatchSource { core, hctx, ran } = self;
        let stats = &hctx.runner_stats;
        RunnerStats::add(if ran.replace(true) { &stats.reruns } else { &stats.runs }, 1);
        let pass = nest::pass(*hctx, || hctx.feed_driver(core, halted));
        hctx.with_backlog(|backlog| {
            if hctx.is_hand_empty(backlog) {
                return pass;
            }
            // These were submitted after the last look, perhaps in the commit.
            hctx.collect(core, backlog);
            hctx.publish(backlog);
            if pass == PassOutcome::Idle { PassOutcome::More } else { pass }
        })
    }

    fn put_down(&self) -> bool {
        let mut had = false;
        // SAFETY: only the runner calls this.
        while let Some(pending) = unsafe { self.hctx.hand.pop() } {
            self.core.enqueue(pending);
            had = true;
        }
        had
    }
}

impl Hctx {
    /// Borrows the backlog, for the runner, outside of a pass.
    #[inline]
    fn with_backlog<R>(&self, f: impl FnOnce(&mut Backlog<Box<Pending>>) -> R) -> R {
        // SAFETY: only the holder of RUNNING calls this, and it alone touches the backlog until it
        // ends. A callee of `f` may come back here, but then finds RUNNING set.
        self.backlog.with_mut(|backlog| f(unsafe { &mut *backlog }))
    }

    /// Keeps a request of this hardware queue in the runner's hand if this thread is the runner,
    /// and in a pass (Keep); else gives it back.
    #[inline]
    pub(crate) fn keep(&self, pending: Box<Pending>) -> Option<Box<Pending>> {
        if !nest::is_in_pass_of(self) {
            return Some(pending);
        }
        // SAFETY: only the runner makes passes, and this thread is in one.
        unsafe { self.hand.push(pending) };
        None
    }

    /// Returns true if the hand is empty. The backlog shows that the caller is the runner.
    fn is_hand_empty(&self, _: &Backlog<Box<Pending>>) -> bool {
        // SAFETY: the caller is the runner.
        unsafe { self.hand.is_empty() }
    }

    /// Moves the requests of the software queues to the backlog, and then those in the runner's
    /// hand: earlier ones go first.
    fn collect(&self, core: &Core, backlog: &mut Backlog<Box<Pending>>) {
        core.software.collect(&self.ctxs, backlog);
        if !self.is_hand_empty(backlog) {
            // SAFETY: the backlog is the runner's.
            backlog.extend(iter::from_fn(|| unsafe { self.hand.pop() }));
        }
        RunnerStats::add(&self.runner_stats.merged, backlog.take_merged());
    }

    /// Makes a pass: starts what is pending and may go.
    fn feed_driver(&self, core: &Core, halted: &dyn Fn() -> bool) -> PassOutcome {
        let mut started = 0;
        let pass = self.with_backlog(|backlog| {
            if !self.is_hand_empty(backlog) {
                self.collect(core, backlog); // what the runner has brought along
            }
            let mut tags = TagBatch::default();
            let pass = self.start_some(core, backlog, halted, &mut started, &mut tags);
            // Not all were needed: the pass was halted, or the queue is dead.
            self.return_tags(0, tags);
            self.publish(backlog);
            pass
        });
        if started != 0 {
            let _section =
                (!core.may_block).then(|| AtomicSection::enter("commit of a block dispatch"));
            if caught(|| core.driver.commit(self.index)).is_none() {
                tracing::error!(queue = %core.name, "the driver panicked in commit");
            }
        }
        pass
    }

    /// Puts a request that the driver couldn't take back to the front, and returns the tags, which
    /// others may be able to use.
    fn give_back(&self, rq: Started, backlog: &mut Backlog<Box<Pending>>, tags: &mut TagBatch) {
        RunnerStats::add(&self.runner_stats.busy, 1);
        RunnerStats::add(&self.runner_stats.dispatched, 1u64.wrapping_neg());
        let mut pending = rq.into_pending();
        pending.unbegin(self);
        let (slot, tag) = (pending.slot, pending.tag);
        backlog.give_back(pending);
        self.return_tags(slot, TagBatch::one(tag));
        self.return_tags(slot, mem::take(tags));
        self.publish(backlog);
    }

    fn start_some(
        &self,
        core: &Core,
        backlog: &mut Backlog<Box<Pending>>,
        halted: &dyn Fn() -> bool,
        started: &mut u32,
        tags: &mut TagBatch,
    ) -> PassOutcome {
        // Only workers run a driver that may block, and the driver declares where it blocks.
        let _section =
            (!core.may_block).then(|| AtomicSection::enter("dispatch of block requests"));
        let (mut fresh, mut below) = (true, 0);
        loop {
            if !self.requeued.is_empty() {
                // A request that the driver gave back later goes before all others.
                backlog.requeue(self.requeued.take());
            }
            // A scheduler sees the new requests each time that there are tags for some more.
            if backlog.is_empty() || (fresh && backlog.chooses()) {
                self.collect(core, backlog);
                fresh = false;
            }
            if backlog.is_empty() {
                return PassOutcome::Idle;
            }
            if core.is_dead() {
                while let Some(pending) = backlog.next() {
                    pending.abandon();
                }
                continue;
            }
            if *started + below == PASS_QUOTA || halted() {
                return PassOutcome::More;
            }
            if self.is_inactive() && self.hand_on(core, backlog) {
                continue;
            }
            if core.may_remap {
                let may_go = || !halted() && !core.is_dead() && self.requeued.is_empty();
                let most = PASS_QUOTA - *started - below;
                match self.send_below(core, backlog, most, may_go) {
                    0 => {}
                    sent => {
                        below += sent;
                        continue;
                    }
                }
            }
            if tags.is_empty() {
                let most = (PASS_QUOTA - *started - below).min(backlog.len() as u32);
                let cpu = backlog.slot().unwrap_or_default();
                *tags = self.tags_for_next(backlog, cpu, most);
                fresh = true;
            }
            let Some(tag) = tags.pop() else { return PassOutcome::Idle };
            let Some(mut pending) = backlog.next() else { return PassOutcome::Idle };
            pending.begin(self, tag);
            let rq = Started::new(pending);
            let driver = &core.driver;
            // Counted before it can complete, so that a thread that has drained the queue sees it
            // counted.
            RunnerStats::add(&self.runner_stats.dispatched, 1);
            match caught(|| driver.queue_request(self.index, rq)) {
                Some(Dispatch::Started) => *started += 1,
                Some(Dispatch::Busy(other) | Dispatch::NoResource(other))
                    if !other.is_of(core, self.index, tag) =>
                {
                    // Its tag is none of this call's: perhaps of another queue's set. The request
                    // of this call stays the driver's.
                    *started += 1;
                    other.refuse(&core.name);
                }
                Some(Dispatch::Busy(rq)) => {
                    self.give_back(rq, backlog, tags);
                    // The next completion runs the queue again, if one is to come.
                    let in_use = self.tags.restart_at_next_free();
                    return if in_use == 0 { PassOutcome::Later } else { PassOutcome::Idle };
                }
                Some(Dispatch::NoResource(rq)) => {
                    self.give_back(rq, backlog, tags);
                    // The runner waits as above, but the resource may become free much sooner
                    // without an event.
                    let _in_use = self.tags.restart_at_next_free();
                    return PassOutcome::Later;
                }
                None => {
                    // The unwinding dropped the request, which completed it.
                    *started += 1;
                    tracing::error!(
                        queue = %core.name, driver = core.kind,
                        "the driver panicked while it started a request"
                    );
                }
            }
        }
    }
}
