//! What the runner of a hardware queue has collected and not started yet.

use std::collections::VecDeque;
use std::mem;

use corewise_sync::time::Stamp;

use crate::merge;
use crate::pending::Pending;
use crate::request::Op;
use crate::sched::{IoScheduler, Item, Scheduler};

/// The dispatch list, and the scheduler behind it. The runner's alone.
pub(crate) struct Backlog {
    /// Goes first, in this order: what the driver gave back, flushes, and everything where there is no scheduler.
    list: VecDeque<Box<Pending>>,
    sched: Option<Box<dyn Scheduler<Box<Pending>>>>,
    /// Requests that became one with another since somebody asked.
    merged: u64,
}

impl Item for Box<Pending> {
    fn is_read(&self) -> bool {
        self.rq().op() == Op::Read
    }

    fn start(&self) -> u64 {
        self.rq().offset()
    }

    fn end(&self) -> u64 {
        self.rq().offset().saturating_add(self.rq().len())
    }

    fn merge(&mut self, other: Self) -> Result<(), Self> {
        merge::try_merge(self, other)
    }
}

impl Backlog {
    pub(super) fn new(scheduler: IoScheduler) -> Self {
        Self { list: VecDeque::new(), sched: scheduler.make(), merged: 0 }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.list.len() + self.sched.as_ref().map_or(0, |sched| sched.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it gains by seeing everything that is pending before it says what goes next.
    pub(super) fn chooses(&self) -> bool {
        self.sched.is_some()
    }

    /// How many requests became one with another since the last call.
    pub(super) fn take_merged(&mut self) -> u64 {
        mem::take(&mut self.merged)
    }

    /// What is to be started next.
    pub(crate) fn next(&mut self) -> Option<Box<Pending>> {
        // The dispatch list first (rule 18).
        self.list.pop_front().or_else(|| self.sched.as_mut()?.next(Stamp::coarse()))
    }

    /// The driver gave it back: it goes before all others.
    pub(super) fn give_back(&mut self, pending: Box<Pending>) {
        self.list.push_front(pending);
    }

    /// The driver had them, and gave them back later: they go before all others, in their order.
    #[cold]
    pub(super) fn requeue(&mut self, given_back: impl Iterator<Item = Box<Pending>>) {
        for (at, pending) in given_back.enumerate() {
            self.list.insert(at, pending);
        }
    }

    /// The CPU slot of the next one, where that is known already.
    pub(super) fn slot(&self) -> Option<usize> {
        self.list.front().map(|pending| pending.slot)
    }

    /// Replaces the scheduler. Nothing waits.
    pub(super) fn set_scheduler(&mut self, scheduler: IoScheduler) {
        debug_assert!(self.is_empty(), "the queue is frozen, so nothing is inside");
        self.sched = scheduler.make();
    }
}

impl Extend<Box<Pending>> for Backlog {
    fn extend<I: IntoIterator<Item = Box<Pending>>>(&mut self, fresh: I) {
        let Some(sched) = &mut self.sched else {
            for pending in fresh {
                self.merged += u64::from(merge::into_list(&mut self.list, pending));
            }
            return;
        };
        let now = Stamp::coarse();
        let before = sched.len();
        let mut came = 0;
        for pending in fresh {
            if pending.rq().op() == Op::Flush {
                self.list.push_back(pending);
            } else {
                sched.insert(pending, now);
                came += 1;
            }
        }
        self.merged += (before + came - sched.len()) as u64;
    }
}
