//! A CPU's call target: the side that callers push to, and the side that runs what was pushed.
//!
//! The protocol (accept, push, wake; close, drain, declare dead) stands in `README.md` beside this
//! file.

use std::any::Any;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::context::{AtomicSection, Site};
use corewise_sync::thread::{self, ThreadId};
use corewise_sync::{CachePadded, Completion, Mutex, Parker, panics};
use corewise_topology::{CpuId, CpuSet, current_affinity, current_cpu, pin_current_thread};

use crate::cells::{Class, Message, Queue, RunOutcome, quietly};
use crate::error::SkipReason;
use crate::priority::Priority;
use crate::sleepers::Sleeper;
use crate::spin::Spinner;
use crate::stats::Stats;
use crate::target_state::{CloseResult, OpenResult, Snapshot, TargetState, Wake};

/// Number of unawaited calls that are run before the queue is read again.
///
/// With one, an awaited call is behind one such call at most, and the read costs a load.
const PLAIN_CALLS_PER_STEP: usize = 1;

/// The shared side of a target. It is made once per CPU and never freed while a handle or the owner
/// side lives, also across offline. So nothing is freed under a caller that has just chosen it.
pub(crate) struct Target {
    /// I: the CPU.
    pub(crate) cpu: CpuId,
    /// The state, on a cache line of its own: every call writes it.
    state: CachePadded<TargetState>,
    /// The sleeper, which wakes the owner side.
    sleeper: Sleeper,
    /// L: is the lock; guards which thread runs this target's handlers just now. Callers take it
    /// only inside an atomic section, so never on the common path.
    runner: Mutex<Option<ThreadId>>,
    /// L: is the lock; guards the event of the closing in progress. `begin_close` and
    /// `finish_close` are called under it, so that an event is never completed for a later
    /// closing.
    leaving: Mutex<Option<Arc<Completion>>>,
    /// A: true if it was closed because the process lost the CPU. Relaxed: it orders nothing.
    pub(crate) lost: AtomicBool,
    pub(crate) stats: Stats,
    /// L: is the lock; guards which thread runs it. Taken when a thread starts or ends, and by a
    /// thread that reads from outside.
    own_thread: Mutex<Option<ThreadInfo>>,
}

/// A thread of ours that runs a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadInfo {
    /// The priority that it got.
    pub(crate) granted: Priority,
    pub(crate) thread: corewise_sync::sys::Tid,
}

impl Target {
    /// Creates a new target, offline, and its owner side, which may spin or not.
    pub(crate) fn new(cpu: CpuId, spins: bool) -> (Arc<Target>, CallTarget) {
        let parker = Parker::new();
        let target = Arc::new(Target {
            cpu,
            state: CachePadded::new(TargetState::new()),
            sleeper: Sleeper::new(parker.unparker()),
            runner: Mutex::new(None),
            leaving: Mutex::new(None),
            lost: AtomicBool::new(false),
            stats: Stats::new(),
            own_thread: Mutex::new(None),
        });
        let owner = CallTarget {
            target: Arc::clone(&target),
            parker,
            urgent: Queue::EMPTY,
            plain: Queue::EMPTY,
            seen: target.state.snapshot(),
            spinner: Box::new(Spinner::new(spins)),
            pinned: false,
        };
        (target, owner)
    }

    /// Returns the thread of ours that runs it.
    pub(crate) fn own_thread(&self) -> Option<ThreadInfo> {
        *self.own_thread.lock()
    }

    /// Wakes the target without a new call: the thread that was to do so may have been preempted
    /// before it did, and later pushers don't know.
    pub(crate) fn wake_again(&self) {
        self.sleeper.wake_anyway();
    }

    pub(crate) fn state(&self) -> &TargetState {
        &self.state
    }

    /// Delivers a message (steps Push and Wake of the protocol): it is accepted and will be run, or
    /// given back with the reason. Never blocks, never spins.
    #[inline]
    pub(crate) fn deliver(&self, message: Message) -> Result<(), (SkipReason, Message)> {
        if let Some(sleeper) = self.push(message)? {
            sleeper.wake();
        }
        Ok(())
    }

    /// Pushes a message (step Push alone): the caller wakes the sleeper, or lets another thread do
    /// that.
    #[inline]
    pub(crate) fn push(&self, message: Message) -> Result<Option<&Sleeper>, (SkipReason, Message)> {
        Ok(match self.state.push(message)? {
            Wake::Owner => {
                self.stats.woke();
                Some(&self.sleeper)
            }
            Wake::Nobody => None,
        })
    }

    /// Fails messages, which dropping them does. A panic (of captures that are dropped, of a waker
    /// that is called) ends here: the waiters behind it end too.
    fn fail_all(&self, mut messages: Queue) {
        while let Some(message) = messages.pop_front() {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(message))) {
                self.report_panic(payload);
            }
        }
    }

    fn report_panic(&self, payload: Box<dyn Any + Send>) {
        panics::discard(payload);
        quietly(|| {
            tracing::error!(cpu = self.cpu.number(), "a drop or a wake-up after a call panicked")
        });
    }

    /// Returns true if the calling thread is running this target's handlers just now.
    pub(crate) fn is_run_by_this_thread(&self) -> bool {
        corewise_sync::context::in_atomic_section()
            && *self.runner.lock() == Some(thread::current().id())
    }

    /// Opens the target for calls. The caller holds the handle's control lock.
    pub(crate) fn open(&self) -> OpenResult {
        self.lost.store(false, Ordering::Relaxed);
        self.state.go_online()
    }

    /// Closes the target (step Close). The event completes when the target has run what it accepted
    /// and is declared dead; `None` if it is offline already. Never blocks for long; any context.
    pub(crate) fn close(&self, stop: bool) -> Option<Arc<Completion>> {
        let mut leaving = self.leaving.lock();
        let (begun, wake) = self.state.begin_close(stop);
        let event = match begun {
            CloseResult::Closing => {
                let event = Arc::new(Completion::new());
                *leaving = Some(Arc::clone(&event));
                Some(event)
            }
            CloseResult::AlreadyClosing => leaving.clone(),
            CloseResult::Offline => None,
        };
        drop(leaving);
        // Also if it was offline: a loop that waits to be opened has to see that it never will be.
        if wake == Wake::Owner {
            self.sleeper.wake();
        }
        event
    }

    /// Returns the event of the closing in progress, if there is one.
    pub(crate) fn closing(&self) -> Option<Arc<Completion>> {
        self.leaving.lock().clone()
    }

    /// Runs one call in this thread, inside an atomic section. All panics end here: of the
    /// function, of its captures when they are dropped, or of a waker that was called.
    pub(crate) fn run_one(&self, message: Message) {
        let label = message.label();
        let _section =
            AtomicSection::enter_for(Site { what: (label.name)(), location: label.site });
        let timing = self.stats.begin(label, message.queued());
        match catch_unwind(AssertUnwindSafe(|| message.run())) {
            Ok(RunOutcome::Returned) => {}
            Ok(RunOutcome::Panicked) => self.stats.panicked(),
            Err(payload) => {
                self.stats.panicked();
                self.report_panic(payload);
            }
        }
        self.stats.end(timing);
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("cpu", &self.cpu).field("state", &*self.state).finish()
    }
}

/// Result of one [`CallTarget::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Calls were run (at least one). There may be more.
    Ran(usize),
    /// The step found nothing to do.
    Idle,
    /// The last accepted call was run, if there was one left, and the CPU is offline.
    Left,
    /// The CPU is offline; it may come back.
    Offline,
    /// The CPU is offline for good: the handle is shut down.
    Stopped,
}

/// The owner side of one CPU's call target: its owner runs the calls, step by step.
///
/// [`Smp::new`](crate::Smp::new) gives each to a thread of its own;
/// [`stepped`](crate::model::stepped) hands them out, for tests that choose the order.
///
/// Dropping it takes the CPU out for good: calls that were accepted and not run fail with
/// [`CallFailed::NotOnline`](crate::CallFailed::NotOnline), and later ones are refused.
pub struct CallTarget {
    pub(crate) target: Arc<Target>,
    pub(crate) parker: Parker,
    /// Awaited messages that were taken.
    urgent: Queue,
    /// Unawaited messages that were taken.
    plain: Queue,
    /// The target's word as the last step saw it, with nothing in it.
    seen: Snapshot,
    /// The spinner. Boxed, since the owner side is moved about and given back in errors.
    spinner: Box<Spinner>,
    /// True if the thread that runs it was pinned to the target's CPU.
    pinned: bool,
}

impl CallTarget {
    /// Returns the CPU whose calls it runs.
    pub fn cpu(&self) -> CpuId {
        self.target.cpu
    }

    /// Sets the thread of ours that runs it from now on; or none does.
    pub(crate) fn set_own_thread(&mut self, own_thread: Option<ThreadInfo>) {
        self.spinner.runs_at(own_thread.map(|info| info.granted));
        *self.target.own_thread.lock() = own_thread;
    }

    /// Sets whether the calling thread, which runs it from now on, is pinned to its CPU.
    pub(crate) fn set_pinned(&mut self, pinned: bool) {
        self.pinned = pinned;
    }

    /// Makes one bounded step: takes the queue, runs every awaited call taken, oldest first, then
    /// one unawaited call. Never blocks (unless a handler does).
    ///
    /// The functions run on the calling thread, each inside an atomic section.
    pub fn step(&mut self) -> Step {
        let target = Arc::clone(&self.target);
        let _runner = Runner::enter(&target);
        self.step_as_runner()
    }

    /// Runs calls until the CPU leaves, parking while there are none. Blocks.
    ///
    /// While the CPU is offline it waits for it to come online. Returns when the CPU has left, or
    /// will never be online (again).
    pub fn run(&mut self) {
        let target = Arc::clone(&self.target);
        let _runner = Runner::enter(&target);
        loop {
            match self.step_as_runner() {
                Step::Ran(_) => self.spinner.works(),
                Step::Idle | Step::Offline => self.rest(),
                Step::Left | Step::Stopped => return,
            }
        }
    }

    /// Rests (steps Spin, Announce and Sleep), if the last step found nothing to do.
    fn rest(&mut self) {
        if self.spinner.spin(|| self.target.state.differs_from(self.seen)) {
            return;
        }
        if !self.spinner.raises() {
            let own_thread = self.target.own_thread();
            self.set_own_thread(
                own_thread.map(|info| ThreadInfo { granted: Priority::Plain, ..info }),
            );
        }
        if self.target.state.announce_park(self.seen) {
            self.spinner.sleeps();
            self.parker.park();
            self.spinner.wakes();
        }
    }

    pub(crate) fn step_as_runner(&mut self) -> Step {
        let (batch, seen) = self.target.state.take();
        self.seen = seen;
        if seen.is_offline() {
            return if seen.is_stopped() { Step::Stopped } else { Step::Offline };
        }
        self.sort(batch);
        let mut ran = 0;
        while let Some(message) = self.urgent.pop_front() {
            self.look_where_it_is();
            self.target.run_one(message);
            ran += 1;
        }
        for _ in 0..PLAIN_CALLS_PER_STEP {
            let Some(message) = self.plain.pop_front() else { break };
            self.look_where_it_is();
            self.target.run_one(message);
            ran += 1;
        }
        // A target that Take saw closing has got its last call by then.
        if seen.is_closing() && self.plain.is_empty() {
            self.declare_dead();
            return Step::Left;
        }
        if ran == 0 { Step::Idle } else { Step::Ran(ran) }
    }

    fn sort(&mut self, mut batch: Queue) {
        if batch.is_empty() {
            return;
        }
        self.target.stats.took_batch();
        let cpu = self.target.cpu;
        self.spinner.has_work(|| batch.first().is_some_and(|first| first.source() == Some(cpu)));
        let tell = batch.is_more_than_one();
        while let Some(message) = batch.pop_front() {
            if tell {
                message.cell().diagnosis.taken();
            }
            match message.class() {
                Class::Urgent => self.urgent.push_back(message),
                Class::Plain => self.plain.push_back(message),
            }
        }
    }

    /// Checks, before each call, whether the system has moved the thread to another CPU. A load, if
    /// all is well.
    #[inline]
    fn look_where_it_is(&self) {
        let astray = self.pinned && current_cpu().is_some_and(|here| here != self.target.cpu);
        if astray && !self.goes_back() {
            self.lose_cpu();
        }
    }

    /// Pins the thread to its CPU once more, if it may still use that one. A mask without the CPU
    /// means that the process is wanted elsewhere: the target respects that.
    #[cold]
    fn goes_back(&self) -> bool {
        let cpu = self.target.cpu;
        // A mask that can't be read forbids nothing; the system refuses what it doesn't allow.
        let may = current_affinity().ok().flatten().is_none_or(|mask| mask.contains(cpu));
        may && pin_current_thread(&CpuSet::from_iter([cpu])).is_ok() && current_cpu() == Some(cpu)
    }

    /// Closes the target (step Close), as the process has lost the CPU, and logs that, if that
    /// wasn't done already. An accepted call runs in this thread, as it would if the CPU leaves.
    #[cold]
    fn lose_cpu(&self) {
        if self.target.lost.swap(true, Ordering::Relaxed) {
            return;
        }
        // The event is for a thread that takes a CPU out and waits for that.
        let _ = self.target.close(false);
        // A subscriber is user code: its panic mustn't end the target's thread.
        quietly(|| {
            tracing::warn!(
                cpu = self.target.cpu.number(),
                "the process may no longer use this CPU: the CPU is offline for calls from now on, \
                 and its accepted calls run elsewhere; `Smp::follow_machine` or `Smp::cpu_online` \
                 brings it back"
            );
        });
    }

    /// Declares the CPU dead (step Die).
    fn declare_dead(&self) {
        let mut leaving = self.target.leaving.lock();
        self.target.state.finish_close();
        let event = leaving.take();
        drop(leaving);
        if let Some(event) = event {
            event.complete();
        }
    }
}

impl Drop for CallTarget {
    /// Abandons the target (step Abandon): every waiter still ends.
    fn drop(&mut self) {
        let pushed = self.target.state.abandon();
        self.target.fail_all(mem::replace(&mut self.urgent, Queue::EMPTY));
        self.target.fail_all(mem::replace(&mut self.plain, Queue::EMPTY));
        self.target.fail_all(pushed);
        let event = self.target.leaving.lock().take();
        if let Some(event) = event {
            event.complete();
        }
    }
}

impl fmt::Debug for CallTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallTarget").field("target", &self.target).finish_non_exhaustive()
    }
}

/// A guard that marks this thread as the one that runs the target's handlers, until it is dropped.
pub(crate) struct Runner<'a> {
    target: &'a Target,
    outer: Option<ThreadId>,
}

impl<'a> Runner<'a> {
    pub(crate) fn enter(target: &'a Target) -> Self {
        let outer = target.runner.lock().replace(thread::current().id());
        Runner { target, outer }
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        *self.target.runner.lock() = self.outer;
    }
}
