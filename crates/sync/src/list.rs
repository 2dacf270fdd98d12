//! A doubly linked list through the nodes themselves: no allocation, and a node in the middle is
//! taken out in constant time.
//!
//! It carries what an [`Inbox`](crate::inbox::Inbox) carries, by the same hook: a consumer empties
//! the inbox into a list that its lock guards. It is not shared by itself: `&mut` is the lock.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::inbox::{Link, Node};

/// The list. Dropping it drops what is in it.
pub struct List<N: Node> {
    first: Option<NonNull<N::Target>>,
    last: Option<NonNull<N::Target>>,
    len: usize,
    owns: PhantomData<N>,
}

// SAFETY: a list owns its handles, as a `Vec<N>` would.
unsafe impl<N: Node + Send> Send for List<N> {}

impl<N: Node> Default for List<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Node> List<N> {
    /// An empty list.
    pub fn new() -> Self {
        List { first: None, last: None, len: 0, owns: PhantomData }
    }

    /// How many nodes are in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The first node; it stays in the list.
    pub fn front(&self) -> Option<&N::Target> {
        // SAFETY: a node in the list was given up to it, so its target is valid and in place; it is
        // taken out through `&mut self` only.
        self.first.map(|node| unsafe { node.as_ref() })
    }

    /// The targets, first to last.
    pub fn iter(&self) -> Iter<'_, N> {
        Iter { next: self.first, list: PhantomData }
    }

    /// Puts a node at the end.
    ///
    /// # Panics
    /// Where the node is an `Arc` whose target is in a list or an inbox already.
    pub fn push_back(&mut self, node: N) {
        let raw = node.into_raw();
        let link = Self::link(&raw);
        link.set_next(ptr::null_mut());
        link.set_prev(to_ptr(self.last));
        match self.last.replace(raw) {
            Some(last) => Self::link(&last).set_next(raw.as_ptr().cast()),
            None => self.first = Some(raw),
        }
        self.len += 1;
    }

    /// Puts a node at the front.
    ///
    /// # Panics
    /// As [`List::push_back`].
    pub fn push_front(&mut self, node: N) {
        let raw = node.into_raw();
        let link = Self::link(&raw);
        link.set_prev(ptr::null_mut());
        link.set_next(to_ptr(self.first));
        match self.first.replace(raw) {
            Some(first) => Self::link(&first).set_prev(raw.as_ptr().cast()),
            None => self.last = Some(raw),
        }
        self.len += 1;
    }

    /// Takes the first node out.
    pub fn pop_front(&mut self) -> Option<N> {
        let first = self.first?;
        // SAFETY: it is in this list: it is the first.
        Some(unsafe { self.remove(first) })
    }

    /// Takes the first node out that `wanted` says yes to.
    pub fn take_first(&mut self, mut wanted: impl FnMut(&N::Target) -> bool) -> Option<N> {
        // By the pointers that were given up, not by references: a node is taken back by its own.
        let mut at = self.first;
        while let Some(node) = at {
            // SAFETY: as in `front`.
            if wanted(unsafe { node.as_ref() }) {
                // SAFETY: it was just found in this list.
                return Some(unsafe { self.remove(node) });
            }
            at = NonNull::new(Self::link(&node).next().cast());
        }
        None
    }

    /// Takes a node out, wherever in the list it lies.
    ///
    /// # Safety
    /// `node` is in this list.
    pub unsafe fn remove(&mut self, node: NonNull<N::Target>) -> N {
        let link = Self::link(&node);
        let (prev, next) = (NonNull::new(link.prev().cast()), NonNull::new(link.next().cast()));
        match prev {
            Some(prev) => Self::link(&prev).set_next(to_ptr(next)),
            None => self.first = next,
        }
        match next {
            Some(next) => Self::link(&next).set_prev(to_ptr(prev)),
            None => self.last = prev,
        }
        self.len -= 1;
        // SAFETY: it was given up to this list, and has just left it: it is taken back once.
        unsafe { N::from_raw(node) }
    }

    /// The hook of a node that is in this list, or about to be.
    fn link<'a>(node: &'a NonNull<N::Target>) -> &'a Link
    where
        N: 'a,
    {
        // SAFETY: the node was given up, and is taken back by `remove` only, at its end. The
        // reference doesn't outlive the function that asks for it.
        unsafe { N::link(*node) }
    }
}

fn to_ptr<T>(node: Option<NonNull<T>>) -> *mut () {
    node.map_or(ptr::null_mut(), |node| node.as_ptr().cast())
}

impl<N: Node> Extend<N> for List<N> {
    fn extend<I: IntoIterator<Item = N>>(&mut self, nodes: I) {
        nodes.into_iter().for_each(|node| self.push_back(node));
    }
}

impl<N: Node> Drop for List<N> {
    fn drop(&mut self) {
        while let Some(node) = self.pop_front() {
            drop(node);
        }
    }
}

impl<N: Node> fmt::Debug for List<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List").field("len", &self.len).finish()
    }
}

/// The targets of a list's nodes.
pub struct Iter<'a, N: Node> {
    next: Option<NonNull<N::Target>>,
    list: PhantomData<&'a List<N>>,
}

impl<'a, N: Node> Iterator for Iter<'a, N>
where
    N::Target: 'a,
{
    type Item = &'a N::Target;

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.next?;
        self.next = NonNull::new(List::<N>::link(&node).next().cast());
        // SAFETY: as in `front`; the list is borrowed for `'a`.
        Some(unsafe { node.as_ref() })
    }
}

impl<N: Node> fmt::Debug for Iter<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Iter")
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::inbox::Inbox;
    use crate::inbox::tests::{Item, item};

    fn items(values: std::ops::Range<usize>) -> List<Box<Item>> {
        let mut list = List::new();
        list.extend(values.map(|value| Box::new(item(value))));
        list
    }
    fn values(list: &List<Box<Item>>) -> Vec<usize> {
        let forward: Vec<_> = list.iter().map(|item| item.value).collect();
        let (mut backward, mut at) = (Vec::new(), list.last);
        while let Some(node) = at {
            // SAFETY: the node is in the list.
            let item = unsafe { node.as_ref() };
            backward.insert(0, item.value);
            at = NonNull::new(item.link.prev().cast());
        }
        assert_eq!(forward, backward, "both directions agree");
        assert_eq!(forward.len(), list.len());
        forward
    }

    #[test]
    fn nodes_come_out_in_the_order_they_went_in() {
        let mut list = items(0..3);
        list.push_front(Box::new(item(9)));
        assert_eq!(values(&list), [9, 0, 1, 2]);
        assert_eq!(list.front().map(|item| item.value), Some(9));
        while list.pop_front().is_some() {}
        assert!(list.is_empty() && list.pop_front().is_none());
        list.extend(items(5..6).pop_front());
        assert_eq!(values(&list), [5], "an emptied list takes nodes again");
    }

    #[test]
    fn a_node_is_taken_out_of_any_place() {
        for taken in 0..4 {
            let mut list = items(0..4);
            let node = list.take_first(|item| item.value == taken).expect("it is there");
            assert_eq!(node.value, taken);
            let left: Vec<_> = (0..4).filter(|n| *n != taken).collect();
            assert_eq!(values(&list), left);
            list.push_back(node);
            assert_eq!(values(&list).last(), Some(&taken));
        }
        assert!(items(0..4).take_first(|item| item.value == 7).is_none());
    }

    #[test]
    fn it_takes_what_an_inbox_carried_and_drops_what_is_left() {
        let shared: Vec<_> = (0..3).map(|value| Arc::new(item(value))).collect();
        let inbox = Inbox::new();
        let mut list = List::new();
        for node in &shared {
            inbox.push(Arc::clone(node));
        }
        list.extend(inbox.take());
        assert_eq!(list.pop_front().map(|item| item.value), Some(0));
        drop(list);
        assert!(shared.iter().all(|node| Arc::strong_count(node) == 1));
    }
}
