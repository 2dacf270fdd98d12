//! What the runner of a hardware queue has collected and not started yet.

use std::collections::VecDeque;
use std::mem;

use corewise_sync::cell::UnsafeCell;
use corewise_sync::time::Stamp;

use crate::sched::{IoScheduler, Item, Scheduler};

/// The dispatch list, and the scheduler behind it. The runner's alone.
pub(crate) struct Backlog<T> {
    /// Goes first, in this order: what the driver gave back, flushes, and everything where there is
    /// no scheduler.
    list: VecDeque<T>,
    sched: Option<Box<dyn Scheduler<T>>>,
    /// Requests that became one with another since somebody asked.
    merged: u64,
}

/// A request, as a backlog knows it.
pub(crate) trait Waiting: Item + Send + 'static {
    /// It passes the scheduler.
    fn is_flush(&self) -> bool;
    /// The CPU slot through which it came.
    fn slot(&self) -> usize;
    /// Its driver gains by merged requests.
    fn merges(&self) -> bool;
}

impl<T: Waiting> Backlog<T> {
    pub(crate) fn new(scheduler: IoScheduler) -> Self {
        Self { list: VecDeque::new(), sched: scheduler.make(), merged: 0 }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.list.len() + self.sched.as_ref().map_or(0, |sched| sched.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it gains by seeing everything that is pending before it says what goes next.
    pub(crate) fn chooses(&self) -> bool {
        self.sched.is_some()
    }

    /// How many requests became one with another since the last call.
    pub(crate) fn take_merged(&mut self) -> u64 {
        mem::take(&mut self.merged)
    }

    /// What is to be started next.
    pub(crate) fn next(&mut self) -> Option<T> {
        // The dispatch list first (rule 18).
        self.list.pop_front().or_else(|| self.sched.as_mut()?.next(Stamp::coarse()))
    }

    /// The driver gave it back: it goes before all others.
    pub(crate) fn give_back(&mut self, pending: T) {
        self.list.push_front(pending);
    }

    /// The driver had them, and gave them back later: they go before all others, in their order.
    #[cold]
    pub(crate) fn requeue(&mut self, given_back: impl Iterator<Item = T>) {
        for (at, pending) in given_back.enumerate() {
            self.list.insert(at, pending);
        }
    }

    /// The CPU slot of the next one, where that is known already.
    pub(crate) fn slot(&self) -> Option<usize> {
        self.list.front().map(|pending| pending.slot())
    }
}

impl<T: Waiting> Extend<T> for Backlog<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, fresh: I) {
        let Some(sched) = &mut self.sched else {
            for pending in fresh {
                self.merged += u64::from(into_list(&mut self.list, pending));
            }
            return;
        };
        let now = Stamp::coarse();
        let before = sched.len();
        let mut came = 0;
        for pending in fresh {
            if pending.is_flush() {
                self.list.push_back(pending);
            } else {
                sched.insert(pending, now);
                came += 1;
            }
        }
        self.merged += (before + came - sched.len()) as u64;
    }
}

/// How many of those that wait a request is compared with, the last first.
const LOOK_BACK: usize = 8;

/// Puts a request at the end of a list, or merges it into one of the last there: then true.
fn into_list<T: Waiting>(list: &mut VecDeque<T>, late: T) -> bool {
    let mut late = late;
    if late.merges() {
        for early in list.iter_mut().rev().take(LOOK_BACK) {
            match early.merge(late) {
                Ok(()) => return true,
                Err(back) => late = back,
            }
        }
    }
    list.push_back(late);
    false
}

// Requests that a runner holds and that lie in no queue yet: the request with which it became the
// runner, and what its own thread submits to this hardware queue in the midst of a pass (a
// completion function submits the next one). Nobody else has to be told of these: they cost no
// read-modify-write of a word that others share.

/// First in, first out. The runner's alone, as its backlog, but open while a pass has the backlog.
pub(crate) struct RunnerList<T> {
    /// P: owned by the holder of RUNNING in the hardware queue's `state`. Borrowed for a moment
    /// only, in which no other code runs.
    list: UnsafeCell<VecDeque<T>>,
}

// SAFETY: `list` is touched by the holder of RUNNING only, as the callers of `push` and `pop`
// promise: claims and ends are AcqRel read-modify-writes of one word, so each runner's accesses
// happen before the next one's. Its items are Send.
unsafe impl<T: Send> Sync for RunnerList<T> {}

impl<T> RunnerList<T> {
    pub(crate) fn new() -> Self {
        Self { list: UnsafeCell::new(VecDeque::new()) }
    }

    /// Puts one behind the others.
    ///
    /// # Safety
    /// The calling thread is the runner of the hardware queue whose hand it is.
    #[inline]
    pub(crate) unsafe fn push(&self, pending: T) {
        // SAFETY: the runner is one thread, and no borrow outlasts its call.
        self.list.with_mut(|list| unsafe { (*list).push_back(pending) });
    }

    /// Takes the first one out.
    ///
    /// # Safety
    /// As for [`RunnerList::push`].
    #[inline]
    pub(crate) unsafe fn pop(&self) -> Option<T> {
        // SAFETY: as above.
        self.list.with_mut(|list| unsafe { (*list).pop_front() })
    }

    /// Whether there is nothing in it.
    ///
    /// # Safety
    /// As for [`RunnerList::push`].
    #[inline]
    pub(crate) unsafe fn is_empty(&self) -> bool {
        // SAFETY: as above.
        self.list.with(|list| unsafe { (*list).is_empty() })
    }
}
