//! The requests that the runner of a hardware queue has collected and not started yet.

use std::collections::VecDeque;
use std::mem;

use corewise_sync::cell::UnsafeCell;
use corewise_sync::time::Stamp;

use crate::sched::{IoScheduler, Item, Scheduler};

/// The dispatch list, and the scheduler behind it. The runner owns both.
pub(crate) struct Backlog<T> {
    /// The list that goes first, in this order: requests that the driver gave back, flushes, and
    /// all others if there is no scheduler.
    list: VecDeque<T>,
    sched: Option<Box<dyn Scheduler<T>>>,
    /// Number of requests merged into others since the last `take_merged`.
    merged: u64,
}

/// A request, as a backlog knows it.
pub(crate) trait Waiting: Item + Send + 'static {
    /// Returns true for a request that bypasses the scheduler.
    fn is_flush(&self) -> bool;
    /// Returns the CPU slot through which the request came.
    fn slot(&self) -> usize;
    /// Returns true if its driver benefits from merged requests.
    fn merges(&self) -> bool;
}

impl<T: Waiting> Backlog<T> {
    pub(crate) fn new(scheduler: IoScheduler) -> Self {
        Self { list: VecDeque::new(), sched: scheduler.make(), merged: 0 }
    }

    /// Returns the number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.list.len() + self.sched.as_ref().map_or(0, |sched| sched.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the scheduler gains by seeing all pending requests before it chooses one.
    pub(crate) fn chooses(&self) -> bool {
        self.sched.is_some()
    }

    /// Returns the number of requests that were merged into others since the last call.
    pub(crate) fn take_merged(&mut self) -> u64 {
        mem::take(&mut self.merged)
    }

    /// Takes out the request to start next.
    pub(crate) fn next(&mut self) -> Option<T> {
        // The dispatch list goes first (rule 18).
        self.list.pop_front().or_else(|| self.sched.as_mut()?.next(Stamp::coarse()))
    }

    /// Returns the first request of the dispatch list.
    pub(crate) fn first(&self) -> Option<&T> {
        self.list.front()
    }

    /// Puts a request that the driver gave back in front of all others.
    pub(crate) fn give_back(&mut self, pending: T) {
        self.list.push_front(pending);
    }

    /// Puts requests that the driver gave back later in front of all others, in their order.
    #[cold]
    pub(crate) fn requeue(&mut self, given_back: impl Iterator<Item = T>) {
        for (at, pending) in given_back.enumerate() {
            self.list.insert(at, pending);
        }
    }

    /// Returns the CPU slot of the next request, if that request is known already.
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

/// Number of waiting requests with which a request is compared, the last first.
const LOOK_BACK: usize = 8;

/// Puts a request at the end of a list, or merges it into one of the last there; then returns true.
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

// Requests that a runner holds and that lie in no queue yet. One is the request with which its
// thread became the runner. The others are those that this thread submits to this hardware queue
// during a pass, as a completion function does. No other thread needs to know of them, so they cost
// no read-modify-write of a shared word.

/// A first-in, first-out list that the runner owns. Unlike its backlog, the list is open during a
/// pass.
pub(crate) struct RunnerList<T> {
    /// P: owned by the holder of RUNNING in the hardware queue's `state`. Borrowed for a moment
    /// only, in which no other code runs.
    list: UnsafeCell<VecDeque<T>>,
}

// SAFETY: only the holder of RUNNING touches `list`, as the callers of `push` and `pop` promise.
// Claims and ends are AcqRel read-modify-writes of one word, so each runner's accesses happen
// before the next one's. Its items are Send.
unsafe impl<T: Send> Sync for RunnerList<T> {}

impl<T> RunnerList<T> {
    pub(crate) fn new() -> Self {
        Self { list: UnsafeCell::new(VecDeque::new()) }
    }

    /// Puts a request behind the others.
    ///
    /// # Safety
    /// The calling thread is the runner of the hardware queue that the list belongs to.
    #[inline]
    pub(crate) unsafe fn push(&self, pending: T) {
        // SAFETY: the runner is one thread, and no borrow outlasts its call.
        self.list.with_mut(|list| unsafe { (*list).push_back(pending) });
    }

    /// Takes the first request out.
    ///
    /// # Safety
    /// The obligations are those of [`RunnerList::push`].
    #[inline]
    pub(crate) unsafe fn pop(&self) -> Option<T> {
        // SAFETY: as above.
        self.list.with_mut(|list| unsafe { (*list).pop_front() })
    }

    /// Returns true if the list is empty.
    ///
    /// # Safety
    /// The obligations are those of [`RunnerList::push`].
    #[inline]
    pub(crate) unsafe fn is_empty(&self) -> bool {
        // SAFETY: as above.
        self.list.with(|list| unsafe { (*list).is_empty() })
    }
}
