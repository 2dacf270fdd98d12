//! A thread of the simulated machine: a coroutine, and the scheduler's facts about it.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use rustc_hash::FxHashMap;

use crate::machine::Mask;

/// A thread's number. Threads are numbered in the order of their creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub(crate) u32);

impl Tid {
    /// Returns the number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the thread of a number from [`Tid::number`].
    pub fn from_number(number: u32) -> Tid {
        Tid(number)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A thread's scheduling policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The thread shares its CPU with other ordinary ones.
    Normal,
    /// The thread runs before all ordinary ones, and before those of a lower number, without a
    /// slice.
    Fifo(u8),
}

impl Policy {
    /// Returns the priority: 0 for an ordinary thread. A higher one goes first.
    pub(crate) fn level(self) -> u8 {
        match self {
            Policy::Normal => 0,
            Policy::Fifo(level) => level,
        }
    }
}

/// State of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The thread runs on its CPU.
    Running,
    /// The thread waits for its CPU.
    Runnable,
    /// The thread sleeps on a word, until a time, or both.
    Asleep,
    /// The thread has ended.
    Done,
}

/// Reason for the end of a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Another thread woke the sleeper.
    Called,
    /// The sleeper's time was over.
    Timeout,
}

pub(crate) type Body = Coroutine<(), (), (), DefaultStack>;
pub(crate) type Suspend = Yielder<(), ()>;

/// Thread-locals, by the address of the static that declares each.
#[derive(Default)]
pub(crate) struct Locals {
    pub(crate) by_key: FxHashMap<usize, Box<dyn Any>>,
    pub(crate) order: VecDeque<usize>,
}

pub(crate) struct Thread {
    pub(crate) name: Option<Arc<str>>,
    /// The coroutine. It is boxed: it stays in place when threads are added.
    pub(crate) body: Option<Box<Body>>,
    /// The coroutine's yielder. The coroutine sets it at its begin; it is valid until its end.
    pub(crate) yielder: *const Suspend,
    /// The lowest address and the bytes of the stack.
    pub(crate) stack: (usize, usize),
    pub(crate) state: State,
    /// CPU on which the thread runs, waits, or ran last.
    pub(crate) cpu: usize,
    pub(crate) affinity: Mask,
    pub(crate) policy: Policy,
    /// True if the thread's timers are punctual.
    pub(crate) on_time: bool,
    /// CPU time that counts for its share.
    pub(crate) share: f64,
    /// CPU time.
    pub(crate) ran: f64,
    /// Time for which the thread was runnable and waited for a CPU.
    pub(crate) waited: f64,
    /// Time at which the thread last began to run or to wait.
    pub(crate) since: f64,
    /// The word on which the thread sleeps, 0 for none.
    pub(crate) sleeps_on: usize,
    /// Number of the sleep. A timer of an earlier sleep is ignored.
    pub(crate) sleep: u64,
    pub(crate) woken: Woken,
    pub(crate) locals: Locals,
    /// Threads that wait for the thread's end.
    pub(crate) joiners: Vec<Tid>,
}

impl Thread {
    pub(crate) fn new(name: Option<Arc<str>>, cpu: usize, affinity: Mask) -> Thread {
        Thread {
            name,
            body: None,
            yielder: std::ptr::null(),
            stack: (0, 0),
            state: State::Runnable,
            cpu,
            affinity,
            policy: Policy::Normal,
            on_time: false,
            share: 0.0,
            ran: 0.0,
            waited: 0.0,
            since: 0.0,
            sleeps_on: 0,
            sleep: 0,
            woken: Woken::Called,
            locals: Locals::default(),
            joiners: Vec::new(),
        }
    }
}
