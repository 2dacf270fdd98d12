//! A CPU's call target: the side that callers push to, and the side that runs what was pushed.
//!
//! The protocol (accept, push, wake; close, drain, declare dead) stands in `README.md` beside this
//! file.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::ThreadId;

use corewise_sync::context::AtomicSection;
use corewise_sync::inbox::Inbox;
use corewise_sync::{CachePadded, Completion, Mutex, Parker, Unparker};

use crate::error::SkipReason;
use crate::message::{Class, Ended, Message};
use crate::policy;
#[cfg(not(loom))]
use crate::priority::Priority;
use crate::stats::Stats;
use crate::target_state::{CloseBegun, Duty, Entry, Opened, TargetState};

/// The shared side. Made once per CPU and never freed while a handle or the owner side lives, also
/// across offline: so nothing is freed under a caller who has just chosen it.
pub(crate) struct Target {
    /// I: the CPU.
    pub(crate) cpu: u32,
    hot: CachePadded<Hot>,
    /// I: wakes the owner side.
    unparker: Unparker,
    /// L: is the lock; guards who is running this target's handlers just now. Taken by callers
    /// only where they are inside an atomic section, so never on the common path.
    runner: Mutex<Option<ThreadId>>,
    /// L: is the lock; guards the event of the closing in progress. `begin_close` and
    /// `finish_close` are called under it, so that an event is never completed for a later
    /// closing.
    leaving: Mutex<Option<Arc<Completion>>>,
    pub(crate) stats: Stats,
    /// L: is the lock; guards the priority that its thread got. Taken where a thread starts or ends,
    /// and by the dump.
    #[cfg(not(loom))]
    granted: Mutex<Option<Priority>>,
}

/// What every call touches, on cache lines of its own.
struct Hot {
    state: TargetState,
    inbox: Inbox<Box<Message>>,
}

impl Target {
    /// A new target, offline, and its owner side.
    pub(crate) fn new(cpu: u32) -> (Arc<Target>, CallTarget) {
        let parker = Parker::new();
        let target = Arc::new(Target {
            cpu,
            hot: CachePadded::new(Hot { state: TargetState::new(), inbox: Inbox::new() }),
            unparker: parker.unparker(),
            runner: Mutex::new(None),
            leaving: Mutex::new(None),
            stats: Stats::new(),
            #[cfg(not(loom))]
            granted: Mutex::new(None),
        });
        let owner = CallTarget {
            target: Arc::clone(&target),
            parker,
            urgent: VecDeque::new(),
            plain: VecDeque::new(),
        };
        (target, owner)
    }

    /// The priority that its thread got.
    #[cfg(not(loom))]
    pub(crate) fn granted(&self) -> Option<Priority> {
        *self.granted.lock()
    }

    /// A thread of ours runs it from now on, at this priority; or none does.
    #[cfg(not(loom))]
    pub(crate) fn set_granted(&self, granted: Option<Priority>) {
        *self.granted.lock() = granted;
    }

    pub(crate) fn state(&self) -> &TargetState {
        &self.hot.state
    }

    /// Steps Enter, Push, Wake, Leave of the protocol: the message is accepted and will be run, or
    /// is taken back and the reason returned. Never blocks, never spins.
    pub(crate) fn deliver(&self, message: Box<Message>) -> Result<(), SkipReason> {
        match self.hot.state.enter() {
            Entry::Refused(reason, duty) => {
                message.take_back();
                self.carry_out(duty);
                Err(reason)
            }
            Entry::Accepted => {
                self.push(message);
                self.carry_out(self.hot.state.leave());
                Ok(())
            }
        }
    }

    /// Steps Push and Wake.
    fn push(&self, message: Box<Message>) {
        if self.hot.inbox.push(message) {
            self.stats.woke();
            self.unparker.unpark();
        }
    }

    fn carry_out(&self, duty: Duty) {
        match duty {
            Duty::Nothing => {}
            Duty::WakeTarget => self.unparker.unpark(),
            Duty::Discard => self.discard(),
        }
    }

    /// Fails everything in the inbox.
    fn discard(&self) {
        self.fail_all(self.hot.inbox.take());
    }

    /// Fails messages, which dropping them does. A panic (of captures that are dropped, of a waker
    /// that is told) ends here: the waiters behind it end too.
    fn fail_all(&self, messages: impl Iterator<Item = Box<Message>>) {
        for message in messages {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(message))) {
                self.leak_panic(payload);
            }
        }
    }

    /// Its own drop might panic again, outside of any catch: better leaked.
    fn leak_panic(&self, payload: Box<dyn Any + Send>) {
        tracing::error!(cpu = self.cpu, "dropping or waking after a call panicked");
        std::mem::forget(payload);
    }

    /// Whether the calling thread is running this target's handlers just now.
    pub(crate) fn is_run_by_this_thread(&self) -> bool {
        corewise_sync::context::in_atomic_section()
            && *self.runner.lock() == Some(std::thread::current().id())
    }

    /// Opens the target for calls. The caller holds the handle's control lock.
    pub(crate) fn open(&self) -> Opened {
        self.hot.state.go_online()
    }

    /// Step Close. The event completes when the target has run what it accepted and is declared
    /// dead; `None` where it is offline already. Never blocks for long; any context.
    pub(crate) fn close(&self, stop: bool) -> Option<Arc<Completion>> {
        let mut leaving = self.leaving.lock();
        let event = match self.hot.state.begin_close(stop) {
            CloseBegun::Closing => {
                let event = Arc::new(Completion::new());
                *leaving = Some(Arc::clone(&event));
                Some(event)
            }
            CloseBegun::AlreadyClosing => leaving.clone(),
            CloseBegun::Offline => None,
        };
        drop(leaving);
        // Also where it was offline: a loop that waits to be opened has to see that it never will
        // be.
        self.unparker.unpark();
        event
    }

    /// The event of the closing in progress, if there is one.
    pub(crate) fn closing(&self) -> Option<Arc<Completion>> {
        self.leaving.lock().clone()
    }

    /// Runs one call in this thread, inside an atomic section. Panics end here, whatever panics:
    /// the function, its captures when they are dropped, or a waker that was told.
    pub(crate) fn run_one(&self, message: Box<Message>) {
        let _section = AtomicSection::enter((message.label().name)());
        let timing = self.stats.begin(message.label(), message.queued());
        match catch_unwind(AssertUnwindSafe(|| message.run())) {
            Ok(Ended::Returned) => {}
            Ok(Ended::Panicked) => self.stats.panicked(),
            Err(payload) => {
                self.stats.panicked();
                self.leak_panic(payload);
            }
        }
        self.stats.end(timing);
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("cpu", &self.cpu).field("state", &self.hot.state).finish()
    }
}

/// What one [`CallTarget::step`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Ran so many calls (at least one). There may be more.
    Ran(usize),
    /// Found nothing to do.
    Idle,
    /// Ran the last accepted call, if there was one left, and took the CPU offline.
    Left,
    /// The CPU is offline; it may come back.
    Offline,
    /// The CPU is offline for good: the handle is shut down.
    Stopped,
}

/// The owner side of one CPU's call target: who has it runs the calls, step by step.
///
/// [`Smp::new`](crate::Smp::new) gives each to a thread of its own;
/// [`Smp::stepped`](crate::Smp::stepped) hands them out, for tests that choose the order, and for
/// programs that have a thread per CPU already.
///
/// Dropping it takes the CPU out for good: calls that were accepted and not run fail with
/// [`CallFailed::NotOnline`](crate::CallFailed::NotOnline), and later ones are refused.
pub struct CallTarget {
    target: Arc<Target>,
    parker: Parker,
    /// Taken, and somebody waits.
    urgent: VecDeque<Box<Message>>,
    /// Taken, and nobody waits.
    plain: VecDeque<Box<Message>>,
}

impl CallTarget {
    /// The CPU whose calls it runs.
    pub fn cpu(&self) -> u32 {
        self.target.cpu
    }

    #[cfg(not(loom))]
    pub(crate) fn set_granted(&self, granted: Option<Priority>) {
        self.target.set_granted(granted);
    }

    /// One bounded step: takes what is in the queue, runs every call taken that somebody waits for,
    /// oldest first, then one that nobody waits for. Never blocks (unless a handler does).
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
                Step::Ran(_) => {}
                // No look after this one is needed before parking: whoever makes a reason to look
                // (first push, last leave, close) leaves a token after it, see README.md.
                Step::Idle | Step::Offline => self.parker.park(),
                Step::Left | Step::Stopped => return,
            }
        }
    }

    fn step_as_runner(&mut self) -> Step {
        let target = &*self.target;
        let before = target.hot.state.snapshot();
        if before.is_offline() {
            return if before.is_stopped() { Step::Stopped } else { Step::Offline };
        }
        // Take, after the look at the state: where it was quiet, this finds the last of the calls.
        let batch = target.hot.inbox.take();
        if !batch.is_empty() {
            target.stats.took_batch();
        }
        for message in batch {
            match message.class() {
                Class::Urgent => self.urgent.push_back(message),
                Class::Plain => self.plain.push_back(message),
            }
        }
        let mut ran = 0;
        while let Some(message) = self.urgent.pop_front() {
            target.run_one(message);
            ran += 1;
        }
        for _ in 0..policy::PLAIN_CALLS_PER_STEP {
            let Some(message) = self.plain.pop_front() else { break };
            target.run_one(message);
            ran += 1;
        }
        if before.is_quiet() && self.plain.is_empty() {
            self.declare_dead();
            return Step::Left;
        }
        if ran == 0 { Step::Idle } else { Step::Ran(ran) }
    }

    /// Step Die.
    fn declare_dead(&self) {
        let mut leaving = self.target.leaving.lock();
        self.target.hot.state.finish_close();
        let event = leaving.take();
        drop(leaving);
        if let Some(event) = event {
            event.complete();
        }
    }
}

impl Drop for CallTarget {
    /// Step Abandon: every waiter still ends.
    fn drop(&mut self) {
        self.target.hot.state.abandon();
        self.target.fail_all(self.urgent.drain(..));
        self.target.fail_all(self.plain.drain(..));
        self.target.discard();
        let event = self.target.leaving.lock().take();
        if let Some(event) = event {
            event.complete();
        }
    }
}

impl fmt::Debug for CallTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallTarget")
            .field("target", &self.target)
            .field("urgent", &self.urgent.len())
            .field("plain", &self.plain.len())
            .finish()
    }
}

/// Says that this thread runs the target's handlers, until dropped.
struct Runner<'a> {
    target: &'a Target,
    outer: Option<ThreadId>,
}

impl<'a> Runner<'a> {
    fn enter(target: &'a Target) -> Self {
        let outer = target.runner.lock().replace(std::thread::current().id());
        Runner { target, outer }
    }
}

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        *self.target.runner.lock() = self.outer;
    }
}

/// The pieces that the models need one by one.
#[cfg(loom)]
impl Target {
    /// What would be wrong: a look at the state that keeps nobody from declaring the target dead
    /// before the push. For the model that has to fail.
    pub(crate) fn deliver_unguarded(&self, message: Box<Message>) -> Result<(), SkipReason> {
        if let Some(reason) = self.hot.state.hint_refusal() {
            message.take_back();
            return Err(reason);
        }
        self.push(message);
        Ok(())
    }
}
