//! A thread of the simulated machine: a coroutine with what a scheduler knows of it.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use rustc_hash::FxHashMap;

use crate::machine::Mask;

/// A thread's number: threads are numbered as they are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub(crate) u32);

impl Tid {
    /// The number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The thread with a number that [`Tid::number`] gave.
    pub fn from_number(number: u32) -> Tid {
        Tid(number)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// How the scheduler treats a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Shares its CPU with others of its kind.
    Normal,
    /// Runs before all ordinary ones, and before those of a lower number, for as long as it likes.
    Fifo(u8),
}

impl Policy {
    /// A thread that has more goes first: 0 is an ordinary thread's.
    pub(crate) fn level(self) -> u8 {
        match self {
            Policy::Normal => 0,
            Policy::Fifo(level) => level,
        }
    }
}

/// What a thread does just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs on its CPU.
    Running,
    /// It waits for its CPU.
    Runnable,
    /// It sleeps: on the word at this address, until a time, or both.
    Asleep,
    /// It has ended.
    Done,
}

/// Why a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Somebody woke it.
    Called,
    /// Its time was over.
    Timeout,
}

pub(crate) type Body = Coroutine<(), (), (), DefaultStack>;
pub(crate) type Suspend = Yielder<(), ()>;

/// A thread's own values, by the address of the static that declares each.
#[derive(Default)]
pub(crate) struct Locals {
    pub(crate) by_key: FxHashMap<usize, Box<dyn Any>>,
    pub(crate) order: VecDeque<usize>,
}

pub(crate) struct Thread {
    pub(crate) name: Option<Arc<str>>,
    /// Boxed: it stays where it is when threads are added.
    pub(crate) body: Option<Box<Body>>,
    /// Set by the coroutine itself as it begins; valid until it ends.
    pub(crate) yielder: *const Suspend,
    /// The lowest address of its stack, and how many bytes it has.
    pub(crate) stack: (usize, usize),
    pub(crate) state: State,
    /// Where it runs, waits, or ran last.
    pub(crate) cpu: usize,
    pub(crate) affinity: Mask,
    pub(crate) policy: Policy,
    /// Its timers aren't late.
    pub(crate) on_time: bool,
    /// CPU time that counts for its share.
    pub(crate) share: f64,
    /// CPU time.
    pub(crate) ran: f64,
    /// Time in which it could have run and waited for a CPU.
    pub(crate) waited: f64,
    /// When it last began to run or to wait.
    pub(crate) since: f64,
    /// The word on which it sleeps, 0 for none.
    pub(crate) sleeps_on: usize,
    /// Distinguishes the sleeps of a thread, so that a timer of an earlier one does nothing.
    pub(crate) sleep: u64,
    pub(crate) woken: Woken,
    pub(crate) locals: Locals,
    /// A futex word for those who join: 1 when it has ended.
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
