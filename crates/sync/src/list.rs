//! A doubly linked list through the nodes themselves: no allocation, and constant time to remove a
//! node in the middle.
//!
//! It carries the nodes of an [`Inbox`], by the same hook: a consumer empties the inbox into a list
//! that its lock guards. The list itself isn't shared: `&mut` is the lock.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::facade::hint;
use crate::inbox::{Inbox, Link, NOBODY, Node};

/// The list. Dropping it drops its nodes.
pub struct List<N: Node> {
    first: Option<NonNull<N::Target>>,
    last: Option<NonNull<N::Target>>,
    len: usize,
    owns: PhantomData<N>,
}

// SAFETY: a list owns its handles, as a `Vec<N>` would.
unsafe impl<N: Node + Send> Send for List<N> {}
// SAFETY: a shared list only gives shared references to its targets.
unsafe impl<N: Node + Sync> Sync for List<N> where N::Target: Sync {}

impl<N: Node> Default for List<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Node> List<N> {
    /// Creates an empty list.
    pub fn new() -> Self {
        List { first: None, last: None, len: 0, owns: PhantomData }
    }

    /// Returns the number of nodes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Returns the first node, which stays in the list.
    pub fn front(&self) -> Option<&N::Target> {
        // SAFETY: a node in the list was given up to it, so its target is valid and in place; it is
        // taken out through `&mut self` only.
        self.first.map(|node| unsafe { node.as_ref() })
    }

    /// Returns the targets, first to last.
    pub fn iter(&self) -> Iter<'_, N> {
        Iter { next: self.first, list: PhantomData }
    }

    /// Appends a node.
    ///
    /// # Panics
    /// If the node is an `Arc` whose target is in a list or an inbox already.
    pub fn push_back(&mut self, node: N) {
        let raw = node.into_raw();
        let link = Self::link(&raw);
        link.set_next(ptr::null_mut());
        link.set_prev(before(self.last));
        match self.last.replace(raw) {
            Some(last) => Self::link(&last).set_next(raw.as_ptr().cast()),
            None => self.first = Some(raw),
        }
        self.len += 1;
    }

    /// Empties an inbox to the end of the list, in the order of arrival. `see` gets each target, in
    /// any order.
    #[inline]
    pub fn append(&mut self, inbox: &Inbox<N>, mut see: impl FnMut(&N::Target)) {
        let Some(newest) = inbox.take_newest() else { return };
        // One pass, from the newest to the oldest: each node knows the one before it.
        let (mut node, mut newer) = (newest, None);
        loop {
            let link = Self::link(&node);
            let older = NonNull::new(link.next().cast());
            link.set_next(to_ptr(newer));
            link.set_prev(before(older));
            // SAFETY: it was given up to the inbox, and is in no list yet.
            see(unsafe { node.as_ref() });
            self.len += 1;
            let Some(older) = older else { break };
            newer = Some(node);
            node = older;
        }
        match self.last.replace(newest) {
            Some(last) => {
                Self::link(&last).set_next(node.as_ptr().cast());
                Self::link(&node).set_prev(last.as_ptr().cast());
            }
            None => self.first = Some(node),
        }
    }

    /// Removes and returns the first node.
    ///
    /// It accesses no other node, but prefetches the next.
    #[inline]
    pub fn pop_front(&mut self) -> Option<N> {
        let first = self.first?;
        self.first = NonNull::new(Self::link(&first).next().cast());
        match self.first {
            Some(next) => hint::prefetch(next.as_ptr()),
            None => self.last = None,
        }
        self.len -= 1;
        // SAFETY: it was given up to this list, and has just left it: it is taken back once.
        Some(unsafe { N::from_raw(first) })
    }

    /// Removes and returns the first node that `wanted` accepts.
    pub fn take_first(&mut self, mut wanted: impl FnMut(&N::Target) -> bool) -> Option<N> {
        // By the pointers that were given up, not by references: a node is taken back by its own
        // pointer.
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

    /// Removes a node anywhere in the list.
    ///
    /// # Safety
    /// `node` is in this list.
    pub unsafe fn remove(&mut self, node: NonNull<N::Target>) -> N {
        let link = Self::link(&node);
        let next = NonNull::new(link.next().cast());
        // The first node doesn't keep its predecessor.
        let prev = if self.first == Some(node) { None } else { NonNull::new(link.prev().cast()) };
        match prev {
            Some(prev) => Self::link(&prev).set_next(to_ptr(next)),
            None => self.first = next,
        }
        match next {
            Some(next) => Self::link(&next).set_prev(before(prev)),
            None => self.last = prev,
        }
        self.len -= 1;
        // SAFETY: it was given up to this list, and has just left it: it is taken back once.
        unsafe { N::from_raw(node) }
    }

    /// Returns the hook of a node that is in this list, or about to be.
    #[inline]
    fn link<'a>(node: &'a NonNull<N::Target>) -> &'a Link
    where
        N: 'a,
    {
        // SAFETY: the node was given up, and is taken back by `remove` only, at its end. The
        // reference doesn't outlive the function that asks for it.
        unsafe { N::link(*node) }
    }
}

/// Returns the value for `prev`: never null, see [`Link`].
#[inline]
fn before<T>(node: Option<NonNull<T>>) -> *mut () {
    node.map_or(NOBODY, |node| node.as_ptr().cast())
}

#[inline]
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

#[cfg(test)]
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
            // The first node doesn't keep its predecessor.
            at =
                if list.first == Some(node) { None } else { NonNull::new(item.link.prev().cast()) };
        }
        assert_eq!(forward, backward, "both directions agree");
        assert_eq!(forward.len(), list.len());
        forward
    }

    #[test]
    fn nodes_come_out_in_the_order_they_went_in() {
        let mut list = items(0..3);
        assert_eq!(values(&list), [0, 1, 2]);
        assert_eq!(list.front().map(|item| item.value), Some(0));
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
    fn an_inbox_is_emptied_to_the_end_in_the_order_of_arrival() {
        for (before, pushed) in [(0, 1), (0, 3), (2, 1), (2, 3)] {
            let (mut list, inbox) = (items(0..before), Inbox::new());
            for value in before..before + pushed {
                inbox.push(Box::new(item(value)));
            }
            let mut seen = 0;
            list.append(&inbox, |_| seen += 1);
            assert_eq!(seen, pushed);
            assert_eq!(values(&list), Vec::from_iter(0..before + pushed));
            assert!(inbox.is_empty());
            list.take_first(|item| item.value + 1 == before + pushed).expect("the last");
            list.push_back(Box::new(item(9)));
            assert_eq!(values(&list).last(), Some(&9));
        }
    }

    #[test]
    fn a_list_takes_the_nodes_of_an_inbox_and_drops_the_rest() {
        let shared: Vec<_> = (0..3).map(|value| Arc::new(item(value))).collect();
        let inbox = Inbox::new();
        let mut list = List::new();
        for node in &shared {
            inbox.push(Arc::clone(node));
            list.append(&inbox, |item| assert_eq!(item.value, node.value));
            list.append(&inbox, |_| unreachable!("it is empty"));
        }
        assert_eq!(list.pop_front().map(|item| item.value), Some(0));
        drop(list);
        assert!(shared.iter().all(|node| Arc::strong_count(node) == 1));
    }
}
