//! A lock-free inbox: many push, one takes everything at once, in the order of arrival.
//!
//! It is Treiber's stack, reversed when it is taken. Nodes are never popped one by one, so the ABA
//! problem can't arise. A pusher compares the head only to link in front of it, and may link in
//! front of a node that left and returned. The kernel's `llist` is the same structure.
//!
//! * Push: one compare-exchange on the head (Release). Its result says whether the inbox was empty:
//!   that pusher, and no other, has to wake the consumer.
//! * Take: one exchange with null (Acquire). Pushes are read-modify-writes of the head, so they
//!   form one release sequence, and the take sees what every one of them wrote.
//!
//! Model: `tests/loom/inbox.rs`.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::facade::atomic::{AtomicPtr, Ordering};
use crate::facade::backend::Witness;

mod closable;

pub use closable::ClosableInbox;

/// Marker for no node where null means something else.
pub(crate) const NOBODY: *mut () = ptr::without_provenance_mut(1);

/// The hook of a node: put one into each type that travels through an [`Inbox`] or a
/// [`List`](crate::list::List), one after the other.
pub struct Link {
    /// P: owned by the pusher until the push, by the taker after the take; atomic only so that a
    /// broken obligation is no data race.
    next: AtomicPtr<()>,
    /// P: as `next`; the previous node, in a list only. For a shared node (`Arc`) it is null if and
    /// only if the node is in no inbox or list, so that the node can't be pushed twice.
    prev: AtomicPtr<()>,
    /// Witness of the accesses to both.
    witness: Witness,
}

impl Link {
    /// Creates a hook that is in no inbox.
    #[inline]
    pub fn new() -> Self {
        Link {
            next: AtomicPtr::new(ptr::null_mut()),
            prev: AtomicPtr::new(ptr::null_mut()),
            witness: Witness::new(),
        }
    }

    #[inline]
    pub(crate) fn next(&self) -> *mut () {
        self.witness.reads();
        self.next.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_next(&self, next: *mut ()) {
        self.witness.writes();
        self.next.store(next, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn prev(&self) -> *mut () {
        self.witness.reads();
        self.prev.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_prev(&self, prev: *mut ()) {
        self.witness.writes();
        self.prev.store(prev, Ordering::Relaxed);
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// A type that holds its own hook.
///
/// # Safety
/// `link` has to return the same [`Link`] each time, one that lives inside `self` and that no other
/// value returns.
pub unsafe trait HasLink {
    /// Returns the hook inside `self`.
    fn link(&self) -> &Link;
}

/// An owning handle that an [`Inbox`] can carry: `Box<T>` and `Arc<T>` where `T` has a [`Link`].
///
/// # Safety
/// `into_raw` gives up exactly what `from_raw` takes back. Between the two the target stays valid
/// and in place, and no second `into_raw` for the same target succeeds. `link` returns the hook of
/// the target.
pub unsafe trait Node: Sized {
    /// Target of the pointers in the inbox.
    type Target;
    /// Gives the handle up.
    fn into_raw(self) -> NonNull<Self::Target>;
    /// Takes the handle back.
    ///
    /// # Safety
    /// `raw` came from `into_raw`, and is taken back once.
    unsafe fn from_raw(raw: NonNull<Self::Target>) -> Self;
    /// Returns the hook of a node that was given up and not taken back.
    ///
    /// # Safety
    /// `raw` came from `into_raw`, and isn't taken back while the reference lives.
    unsafe fn link<'a>(raw: NonNull<Self::Target>) -> &'a Link
    where
        Self: 'a;
}

// SAFETY: a box is unique, so the target is in one inbox at most; `Box::into_raw` and `from_raw`
// preserve it in place.
unsafe impl<T: HasLink> Node for Box<T> {
    type Target = T;

    fn into_raw(self) -> NonNull<T> {
        NonNull::from(Box::leak(self))
    }

    unsafe fn from_raw(raw: NonNull<T>) -> Self {
        // SAFETY: the caller passes what `into_raw` leaked, once.
        let this = unsafe { Box::from_raw(raw.as_ptr()) };
        // It may become a shared one.
        this.link().prev.store(ptr::null_mut(), Ordering::Relaxed);
        this
    }

    unsafe fn link<'a>(raw: NonNull<T>) -> &'a Link
    where
        Self: 'a,
    {
        // SAFETY: the target was leaked and isn't taken back while the reference lives.
        unsafe { raw.as_ref() }.link()
    }
}

// SAFETY: the count that the handle held keeps the target in place; `prev` refuses a second
// handle of the same target for as long as one is in an inbox.
unsafe impl<T: HasLink> Node for Arc<T> {
    type Target = T;

    fn into_raw(self) -> NonNull<T> {
        // Acquire pairs with the Release in `from_raw`: the link is ours to write.
        let was = self.link().prev.swap(NOBODY, Ordering::Acquire);
        assert!(
            was.is_null(),
            "this node is in an inbox already: a shared node is pushed once at a time"
        );
        // SAFETY: `Arc::into_raw` never returns null.
        unsafe { NonNull::new_unchecked(Arc::into_raw(self).cast_mut()) }
    }

    unsafe fn from_raw(raw: NonNull<T>) -> Self {
        // SAFETY: the caller passes what `into_raw` gave up, once.
        let this = unsafe { Arc::from_raw(raw.as_ptr().cast_const()) };
        // Release: the taker's reads of the link come before what the next pusher writes there.
        this.link().prev.store(ptr::null_mut(), Ordering::Release);
        this
    }

    unsafe fn link<'a>(raw: NonNull<T>) -> &'a Link
    where
        Self: 'a,
    {
        // SAFETY: the count given up keeps the target alive while the reference lives.
        unsafe { raw.as_ref() }.link()
    }
}

/// The inbox. Dropping it drops its nodes.
pub struct Inbox<N: Node> {
    /// A: the node pushed last, or null.
    head: AtomicPtr<N::Target>,
    owns: PhantomData<N>,
}

// SAFETY: the inbox moves handles between threads (N: Send) and never gives two threads a reference
// to the same handle.
unsafe impl<N: Node + Send> Send for Inbox<N> {}
// SAFETY: as above: `&Inbox` only allows handles to be moved in and out.
unsafe impl<N: Node + Send> Sync for Inbox<N> {}

impl<N: Node> Default for Inbox<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Node> Inbox<N> {
    /// Creates an empty inbox.
    pub fn new() -> Self {
        Inbox { head: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// Pushes a node. Returns true if the inbox was empty: the caller then has to ensure that a
    /// consumer takes the nodes. Lock-free; any context.
    ///
    /// # Panics
    /// If the node is an `Arc` whose target is in an inbox already.
    #[inline]
    #[track_caller]
    pub fn push(&self, node: N) -> bool {
        let raw = node.into_raw();
        // SAFETY: `raw` was given up just now and no thread can take it back before the exchange
        // below.
        let link = unsafe { N::link(raw) };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.set_next(head.cast());
            // Release pairs with the Acquire of `take`, which sees the node and its `next`. SeqCst
            // is for protocols that then load something, see `FencePolicy::implied`.
            match self.head.compare_exchange_weak(
                head,
                raw.as_ptr(),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => return head.is_null(),
                Err(now) => head = now,
            }
        }
    }

    /// Takes all nodes, in the order of arrival. Lock-free; any context.
    #[track_caller]
    pub fn take(&self) -> Batch<N> {
        let mut newest = self.take_newest();
        let mut first = None;
        while let Some(node) = newest {
            // SAFETY: the exchange made the whole list ours; each node in it was given up by a
            // push.
            let link = unsafe { N::link(node) };
            newest = NonNull::new(link.next().cast());
            link.set_next(first.map_or(ptr::null_mut(), |n: NonNull<N::Target>| n.as_ptr().cast()));
            first = Some(node);
        }
        Batch { first, owns: PhantomData }
    }

    /// Takes all nodes: returns the one pushed last, whose `next` is the one before, and so on.
    #[inline]
    #[track_caller]
    pub(crate) fn take_newest(&self) -> Option<NonNull<N::Target>> {
        if self.is_empty() {
            return None;
        }
        // Acquire pairs with the Release of each push in the head's release sequence. Release: a
        // thread that finds the inbox empty sees what the taker wrote before.
        NonNull::new(self.head.swap(ptr::null_mut(), Ordering::AcqRel))
    }

    /// Returns true if the inbox is empty (a moment ago). A protocol that decides to sleep on the
    /// answer puts a `SeqCst` read-modify-write or a full fence before the call.
    #[inline]
    #[track_caller]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::SeqCst).is_null()
    }
}

impl<N: Node> Drop for Inbox<N> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl<N: Node> fmt::Debug for Inbox<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("empty", &self.is_empty()).finish()
    }
}

/// Nodes of one [`Inbox::take`]: an iterator, oldest first. Dropping it drops the remaining nodes.
pub struct Batch<N: Node> {
    first: Option<NonNull<N::Target>>,
    owns: PhantomData<N>,
}

// SAFETY: a batch owns its handles, as a `Vec<N>` would.
unsafe impl<N: Node + Send> Send for Batch<N> {}

impl<N: Node> Batch<N> {
    /// Returns true if no node is left.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

impl<N: Node> Iterator for Batch<N> {
    type Item = N;

    fn next(&mut self) -> Option<N> {
        let node = self.first?;
        // SAFETY: the node is in our list: given up by its push and not taken back.
        let next = unsafe { N::link(node) }.next();
        self.first = NonNull::new(next.cast());
        // SAFETY: as above, and it just left the list, so it is taken back once.
        Some(unsafe { N::from_raw(node) })
    }
}

impl<N: Node> Drop for Batch<N> {
    fn drop(&mut self) {
        for node in self.by_ref() {
            drop(node);
        }
    }
}

impl<N: Node> fmt::Debug for Batch<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("empty", &self.is_empty()).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[derive(Debug)]
    pub(crate) struct Item {
        pub(crate) link: Link,
        pub(crate) value: usize,
    }
    // SAFETY: always the same field.
    unsafe impl HasLink for Item {
        fn link(&self) -> &Link {
            &self.link
        }
    }
    pub(crate) fn item(value: usize) -> Item {
        Item { link: Link::new(), value }
    }

    #[test]
    fn nodes_are_taken_in_the_order_of_pushes_and_only_the_first_push_finds_an_empty_inbox() {
        let inbox = Inbox::new();
        assert!(inbox.push(Box::new(item(1))));
        assert!(!inbox.push(Box::new(item(2))));
        assert!(!inbox.push(Box::new(item(3))));
        let values: Vec<_> = inbox.take().map(|i| i.value).collect();
        assert_eq!(values, [1, 2, 3]);
        assert!(inbox.is_empty());
        assert!(inbox.push(Box::new(item(4))), "after a take it is empty again");
    }

    #[test]
    fn dropping_an_inbox_or_a_batch_drops_what_is_in_it() {
        let shared: Vec<_> = (0..3).map(|n| Arc::new(item(n))).collect();
        let inbox = Inbox::new();
        for node in &shared {
            inbox.push(Arc::clone(node));
        }
        let mut batch = inbox.take();
        assert_eq!(batch.next().map(|n| n.value), Some(0));
        drop(batch);
        inbox.push(Arc::clone(&shared[1]));
        drop(inbox);
        assert!(shared.iter().all(|n| Arc::strong_count(n) == 1));
    }

    #[test]
    #[should_panic(expected = "in an inbox already")]
    fn a_shared_node_cannot_be_in_an_inbox_twice() {
        let node = Arc::new(item(1));
        let inbox = Inbox::new();
        inbox.push(Arc::clone(&node));
        inbox.push(node);
    }
}
