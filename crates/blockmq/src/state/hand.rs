//! What a runner holds that lies in no queue yet: the request with which it became the runner, and what its own
//! thread submits to this hardware queue in the midst of a pass (a completion function submits the next one).
//! Nobody else has to be told of these: they cost no read-modify-write of a word that others share.

use std::collections::VecDeque;

use corewise_sync::cell::UnsafeCell;

/// First in, first out. The runner's alone, as its backlog, but open while a pass has the backlog.
pub(crate) struct Hand<T> {
    /// P: owned by the holder of RUNNING in the hardware queue's `state`. Borrowed for a moment only, in which no other
    /// code runs.
    list: UnsafeCell<VecDeque<T>>,
}

// SAFETY: `list` is touched by the holder of RUNNING only, as the callers of `push` and `pop` promise: claims and
// ends are AcqRel read-modify-writes of one word, so each runner's accesses happen before the next one's. Its
// items are Send.
unsafe impl<T: Send> Sync for Hand<T> {}

impl<T> Hand<T> {
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
    /// As for [`Hand::push`].
    #[inline]
    pub(crate) unsafe fn pop(&self) -> Option<T> {
        // SAFETY: as above.
        self.list.with_mut(|list| unsafe { (*list).pop_front() })
    }

    /// Whether there is nothing in it.
    ///
    /// # Safety
    /// As for [`Hand::push`].
    #[inline]
    pub(crate) unsafe fn is_empty(&self) -> bool {
        // SAFETY: as above.
        self.list.with(|list| unsafe { (*list).is_empty() })
    }
}
