//! An inbox that can be closed: after that, pushers get their nodes back.
//!
//! It is for nodes that keep the owner of the inbox alive, such as a recycled request that has a
//! reference to its queue. Such a cycle ends only if no thread can push after the last take.
//! Closing is a value of the same word that pushes go to, so there is no moment between "it is
//! open" and the push.
//!
//! Model: `tests/loom/inbox.rs`.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::{Batch, Inbox, NOBODY, Node};
use crate::facade::atomic::Ordering;

/// An [`Inbox`] that can be closed for good. Dropping it drops its nodes.
pub struct ClosableInbox<N: Node> {
    /// Inbox whose head is `NOBODY` once it is closed.
    inbox: Inbox<N>,
}

impl<N: Node> Default for ClosableInbox<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Node> ClosableInbox<N> {
    /// Creates an empty, open inbox.
    pub fn new() -> Self {
        ClosableInbox { inbox: Inbox::new() }
    }

    fn closed() -> *mut N::Target {
        NOBODY.cast()
    }

    /// Pushes a node. Returns true if the inbox was empty. Lock-free; any context. If it succeeds,
    /// the inbox isn't accessed after the exchange that published the node: the thread that takes
    /// the node may free both.
    ///
    /// # Errors
    /// The node is returned if the inbox is closed.
    ///
    /// # Panics
    /// See [`Inbox::push`].
    #[inline]
    pub fn push(&self, node: N) -> Result<bool, N> {
        let raw = node.into_raw();
        let mut head = self.inbox.head.load(Ordering::Relaxed);
        loop {
            if head == Self::closed() {
                // SAFETY: given up just now, and published to nobody.
                return Err(unsafe { N::from_raw(raw) });
            }
            // SAFETY: as above. The reference ends before the exchange.
            unsafe { N::link(raw) }.set_next(head.cast());
            // Release pairs with the Acquire of `take` and `close`.
            match self.inbox.head.compare_exchange_weak(
                head,
                raw.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(head.is_null()),
                Err(now) => head = now,
            }
        }
    }

    /// Takes all nodes, the last one first. None, if the inbox is closed. Lock-free; any context.
    #[inline]
    pub fn take(&self) -> Batch<N> {
        let mut head = self.inbox.head.load(Ordering::Relaxed);
        while !head.is_null() && head != Self::closed() {
            match self.inbox.head.compare_exchange_weak(
                head,
                ptr::null_mut(),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Self::batch(head),
                Err(now) => head = now,
            }
        }
        Self::batch(ptr::null_mut())
    }

    /// Closes it for good, and takes all nodes, the last one first.
    pub fn close(&self) -> Batch<N> {
        let head = self.inbox.head.swap(Self::closed(), Ordering::AcqRel);
        Self::batch(if head == Self::closed() { ptr::null_mut() } else { head })
    }

    /// Returns the taken list as a batch: its links lead from the last node to the first.
    fn batch(head: *mut N::Target) -> Batch<N> {
        Batch { first: NonNull::new(head), owns: PhantomData }
    }
}

impl<N: Node> Drop for ClosableInbox<N> {
    fn drop(&mut self) {
        drop(self.take());
        // Null again, for the drop of the inbox inside.
        self.inbox.head.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

impl<N: Node> fmt::Debug for ClosableInbox<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = self.inbox.head.load(Ordering::Relaxed);
        f.debug_struct("ClosableInbox")
            .field("empty", &(head.is_null() || head == Self::closed()))
            .field("closed", &(head == Self::closed()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::item;
    use super::*;

    #[test]
    fn pushes_are_taken_until_the_close_and_returned_after_it() {
        let inbox = ClosableInbox::new();
        assert!(inbox.push(Box::new(item(1))).unwrap());
        assert!(!inbox.push(Box::new(item(2))).unwrap());
        assert_eq!(inbox.take().map(|i| i.value).collect::<Vec<_>>(), [2, 1]);
        assert!(inbox.take().is_empty());
        assert!(inbox.push(Box::new(item(3))).unwrap());
        assert_eq!(inbox.close().map(|i| i.value).collect::<Vec<_>>(), [3]);
        assert_eq!(inbox.push(Box::new(item(4))).map_err(|i| i.value), Err(4));
        assert!(inbox.take().is_empty() && inbox.close().is_empty());
    }
}
