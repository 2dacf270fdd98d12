//! The timekeeper: what has to happen at a time, and what has to be looked at now and then. Read
//! `README.md` beside this file first: it has the steps by name.
//!
//! Lock order: `state` is taken last and nothing is called under it.
#![allow(dead_code, reason = "the watch and the timers come next")]

pub(crate) mod alarm;
pub(crate) mod cpu_time;
mod heap;
mod hogs;
mod policy;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::thread::JoinHandle;
use corewise_sync::{Mutex, thread};

use crate::error::shielded;
use crate::pool::group::Group;
use crate::spawn::spawn;
use alarm::Alarm;

/// How long a pool with work waiting may make no progress before that is reported.
pub const DEFAULT_STALL_AFTER: Duration = Duration::from_secs(30);
/// How long an item may compute without a pause before other work may start beside it: the
/// kernel's `cpu_intensive_thresh_us`.
pub const DEFAULT_CPU_INTENSIVE_AFTER: Duration = Duration::from_millis(10);

/// What users set.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) stall_after: Duration,
    pub(crate) cpu_intensive_after: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            stall_after: DEFAULT_STALL_AFTER,
            cpu_intensive_after: DEFAULT_CPU_INTENSIVE_AFTER,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("stall_after", &self.stall_after)
            .field("cpu_intensive_after", &self.cpu_intensive_after)
            .finish_non_exhaustive()
    }
}

/// What the time is: since the pools were made.
#[derive(Debug)]
enum Clock {
    Real(Instant),
    /// A: driven by hand, in nanoseconds.
    ByHand(AtomicU64),
}

impl Clock {
    fn now(&self) -> Duration {
        match self {
            Clock::Real(origin) => origin.elapsed(),
            Clock::ByHand(now) => Duration::from_nanos(now.load(Ordering::Relaxed)),
        }
    }
}

/// The timekeeper of some worker pools.
pub(crate) struct Timekeeper {
    alarm: Alarm,
    /// I: real, or driven by hand; then there is no thread either.
    clock: Clock,
    settings: Settings,
    /// L: is the lock; guards the thread, and what it is there for.
    state: Mutex<State>,
}

struct State {
    thread: Thread,
    /// The pools were closed: no more timers.
    closed: bool,
    groups: Vec<Weak<Group>>,
}

enum Thread {
    /// Nobody needed it yet.
    None,
    /// The clock is driven by hand.
    ByHand,
    Made(JoinHandle<()>),
    /// It has to end, or has ended.
    Over,
}

impl Timekeeper {
    /// Starts no thread: whoever needs it first does.
    pub(crate) fn new(settings: Settings) -> Arc<Timekeeper> {
        Self::with(settings, Clock::Real(Instant::now()), Thread::None)
    }

    /// Without a thread, and with a clock that stands still until it is [advanced](Self::advance).
    #[cfg(any(test, loom))]
    pub(crate) fn by_hand(settings: Settings) -> Arc<Timekeeper> {
        Self::with(settings, Clock::ByHand(AtomicU64::new(0)), Thread::ByHand)
    }

    fn with(settings: Settings, clock: Clock, thread: Thread) -> Arc<Timekeeper> {
        let state = State { thread, closed: false, groups: Vec::new() };
        Arc::new(Timekeeper { alarm: Alarm::new(), clock, settings, state: Mutex::new(state) })
    }

    /// From here on these pools are looked at when they have more work than they can take.
    pub(crate) fn look_after(&self, group: &Arc<Group>) {
        self.state.lock().groups.push(Arc::downgrade(group));
    }

    /// Ask (see `README.md`): some pool has work that it can't take. The caller has put a full
    /// fence before.
    #[inline]
    pub(crate) fn ask(self: &Arc<Self>) {
        if self.alarm.raise() {
            self.wake();
        }
    }

    /// Wakes the thread, or makes it; true where it is there.
    #[cold]
    fn wake(self: &Arc<Self>) -> bool {
        let there = {
            let mut state = self.state.lock();
            if matches!(state.thread, Thread::None) {
                let its = Arc::clone(self);
                match spawn("cw-time".into(), move || its.run()) {
                    Ok(handle) => state.thread = Thread::Made(handle),
                    Err(error) => tracing::error!(
                        %error,
                        "no thread for the timekeeper: nobody notices work that is stuck"
                    ),
                }
            }
            matches!(state.thread, Thread::Made(_) | Thread::ByHand)
        };
        self.alarm.ring();
        there
    }

    /// The thread's body.
    fn run(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let mut next = None;
            // What runs in there catches the panics of users' code; one of ours must not end it.
            shielded("the timekeeper", || next = self.tick(now));
            if self.is_over() {
                return;
            }
            self.alarm.rest(next.map(|at| at.saturating_sub(now)));
        }
    }

    fn is_over(&self) -> bool {
        let state = self.state.lock();
        matches!(state.thread, Thread::Over)
            || state.closed && state.groups.iter().all(|group| group.strong_count() == 0)
    }

    /// Does what is due. When there will be something to do next.
    pub(crate) fn tick(self: &Arc<Self>, _now: Duration) -> Option<Duration> {
        self.alarm.lower(|| false);
        None
    }

    /// Some pools are gone: the thread ends with the last, once all was closed.
    pub(crate) fn group_gone(&self) {
        if self.state.lock().closed {
            self.alarm.ring();
        }
    }

    /// No more timers; the thread ends once the pools are gone.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.alarm.ring();
    }

    /// Ends the thread, and waits for it, unless it is the calling one. May block.
    pub(crate) fn end(&self) {
        let thread = std::mem::replace(&mut self.state.lock().thread, Thread::Over);
        self.alarm.ring();
        if let Thread::Made(handle) = thread
            && handle.thread().id() != thread::current().id()
        {
            // It catches panics; if it died of its own, that is logged there.
            let _ = handle.join();
        }
    }
}
