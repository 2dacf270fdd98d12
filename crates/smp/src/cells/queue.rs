//! A list of messages, first in, first out, linked through their cells: it allocates nothing.

use std::ptr;

use super::cell::Cell;
use super::message::Message;

/// The list. It belongs to one thread at a time. Dropping it fails what is in it.
pub(crate) struct Queue {
    first: *mut Cell,
    last: *mut Cell,
}

// SAFETY: it owns its messages, which may be sent.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) const EMPTY: Queue = Queue { first: ptr::null_mut(), last: ptr::null_mut() };

    /// Those of a chain that was pushed one in front of the other, oldest first.
    ///
    /// # Safety
    /// Each cell of the chain is a message that was given up, and the chain is taken once.
    pub(crate) unsafe fn from_newest(newest: *mut Cell) -> Queue {
        let (mut first, mut rest) = (ptr::null_mut(), newest);
        // SAFETY: the chain is ours.
        unsafe {
            while let Some(cell) = rest.as_ref() {
                let older = cell.next();
                cell.set_next(first);
                first = rest;
                rest = older;
            }
        }
        Queue { first, last: newest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// The first one.
    pub(crate) fn first(&self) -> Option<&Cell> {
        // SAFETY: it is a message that was given up to us.
        unsafe { self.first.as_ref() }
    }

    /// Whether there are two or more.
    pub(crate) fn is_more_than_one(&self) -> bool {
        self.first != self.last
    }

    pub(crate) fn push_back(&mut self, message: Message) {
        let cell = message.into_cell();
        // SAFETY: the cells in the list are messages that were given up to us.
        unsafe {
            cell.as_ref().set_next(ptr::null_mut());
            match self.last.as_ref() {
                Some(last) => last.set_next(cell.as_ptr()),
                None => self.first = cell.as_ptr(),
            }
        }
        self.last = cell.as_ptr();
    }

    pub(crate) fn pop_front(&mut self) -> Option<Message> {
        let cell = ptr::NonNull::new(self.first)?;
        // SAFETY: as in `push_back`, and it leaves the list.
        unsafe {
            self.first = cell.as_ref().next();
            if self.first.is_null() {
                self.last = ptr::null_mut();
            }
            Some(Message::from_cell(cell))
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        while let Some(message) = self.pop_front() {
            drop(message);
        }
    }
}
