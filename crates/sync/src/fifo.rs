//! A queue through the nodes themselves: many push, without waiting for anybody, and one at a time
//! takes the oldest.
//!
//! It carries what an [`Inbox`](crate::inbox::Inbox) carries, by the same hook. An inbox is emptied at once, and somebody
//! has to turn round what came out; here each node is touched when it is pushed, when the next one is,
//! and when it is taken. The price is the *gap*: a push has two steps, and while the pusher stands
//! between them nobody gets at what was pushed after. `fifo.md` beside this file has the steps and the
//! argument; the comments use its names. Model: `tests/loom_fifo.rs`.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::atomic::{AtomicPtr, Ordering};
use crate::inbox::Node;
use crate::list::prefetch;

/// The queue, as pushers know it. Who takes has the [`Cursor`] that belongs to it.
///
/// Dropping it doesn't drop what is in it, which has to be taken out before.
pub struct Fifo<N: Node> {
    /// A: the node pushed last; null where nothing is in it.
    tail: AtomicPtr<N::Target>,
    /// A: the node that was pushed when nothing was in it, until the taker has seen it. Written by that
    /// pusher and by the taker in turn.
    front: AtomicPtr<N::Target>,
    #[cfg(loom)]
    broken: Option<Broken>,
    owns: PhantomData<N>,
}

/// The end of a [`Fifo`] from which one at a time takes. Whoever makes the fifo keeps it beside that,
/// where its takers' lock guards it.
pub struct Cursor<N: Node> {
    /// The oldest node, where the taker has seen it already.
    next: Option<NonNull<N::Target>>,
    owns: PhantomData<N>,
}

/// What a take found.
#[derive(Debug)]
#[must_use]
pub enum Taken<N> {
    /// The oldest node.
    Node(N),
    /// Nothing is in it.
    Empty,
    /// There is something, but what pushers write would have to be touched.
    Last,
    /// There is something, but a pusher stands between its two steps.
    Gap,
}

/// What is left out in a model that has to fail.
#[cfg(loom)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Link doesn't release.
    Link,
    /// Close writes over the tail without looking at it.
    Close,
}

// SAFETY: the queue moves handles between threads (N: Send) and never gives two threads a reference to the
// same handle.
unsafe impl<N: Node + Send> Send for Fifo<N> {}
// SAFETY: as above: `&Fifo` only allows handles to be moved in and out.
unsafe impl<N: Node + Send> Sync for Fifo<N> {}
// SAFETY: as above, it is the taker's half of the same.
unsafe impl<N: Node + Send> Send for Cursor<N> {}

impl<N: Node> Fifo<N> {
    /// An empty queue.
    pub fn new() -> Self {
        Fifo {
            tail: AtomicPtr::new(ptr::null_mut()),
            front: AtomicPtr::new(ptr::null_mut()),
            #[cfg(loom)]
            broken: None,
            owns: PhantomData,
        }
    }

    /// One for a model that has to fail.
    #[cfg(loom)]
    pub fn broken(broken: Broken) -> Self {
        Fifo { broken: Some(broken), ..Fifo::new() }
    }

    /// Puts a node at the end. Waits for nobody; any context.
    ///
    /// # Panics
    /// Where the node is an `Arc` whose target is in an inbox, a list or a fifo already.
    #[inline]
    pub fn push(&self, node: N) {
        let raw = node.into_raw();
        // SAFETY: `raw` was given up just now, and nobody can take it back before it is in the queue.
        unsafe { N::link(raw) }.set_next(ptr::null_mut());
        // Swap. Release: who comes after writes the node's `next` after us. Acquire: we write that of
        // the one before after its pusher, and `front` after the taker. SeqCst is for protocols that then load
        // something, see `FencePolicy::implied`.
        let before = self.tail.swap(raw.as_ptr(), Ordering::SeqCst);
        let release = self.release();
        // Link. Release pairs with the Acquire in `take`: the taker sees what the node holds.
        match NonNull::new(before) {
            // SAFETY: it was given up, and no taker takes it back before it has seen what we write here.
            Some(before) => unsafe { N::link(before) }.link_next(raw.as_ptr().cast(), release),
            None => self.front.store(raw.as_ptr(), release),
        }
    }

    /// Whether nothing is in it (a moment ago). A protocol that decides to sleep on the answer puts a
    /// `SeqCst` read-modify-write or a full fence before the call.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail.load(Ordering::SeqCst).is_null()
    }

    /// Takes the oldest node. `last`: also where no other is known to come after it, for which the line has to be
    /// fetched that pushers write.
    ///
    /// # Safety
    /// `cursor` was made for this queue, and what it takes no other cursor does.
    #[inline(always)]
    pub unsafe fn take(&self, cursor: &mut Cursor<N>, last: bool) -> Taken<N> {
        let node = match cursor.next {
            Some(node) => node,
            None => match self.first(last) {
                Ok(node) => node,
                Err(nothing) => return nothing,
            },
        };
        // SAFETY: it is in the queue, and the caller alone takes it back.
        let link = unsafe { N::link(node) };
        // Acquire pairs with the Release of Link. Where it says something its pusher is done with the
        // node.
        let mut next = NonNull::new(link.linked_next().cast());
        if next.is_none() {
            if !last {
                cursor.next = Some(node);
                return Taken::Last;
            }
            if !self.close(node) {
                // Somebody has pushed after it, and is about to link.
                next = NonNull::new(link.linked_next().cast());
                if next.is_none() {
                    cursor.next = Some(node);
                    return Taken::Gap;
                }
            }
        }
        cursor.next = next;
        if let Some(next) = next {
            prefetch(next);
        }
        // SAFETY: it was given up by its push, no pusher touches it any more, and it has just left the
        // queue: it is taken back once.
        Taken::Node(unsafe { N::from_raw(node) })
    }

    /// The node that was pushed when nothing was in it.
    #[inline]
    fn first(&self, last: bool) -> Result<NonNull<N::Target>, Taken<N>> {
        if !last {
            return Err(Taken::Last);
        }
        // Acquire pairs with the Release of Link.
        match NonNull::new(self.front.load(Ordering::Acquire)) {
            Some(node) => {
                // Before Close, after which the next pusher may write it.
                self.front.store(ptr::null_mut(), Ordering::Relaxed);
                Ok(node)
            }
            None if self.is_empty() => Err(Taken::Empty),
            None => Err(Taken::Gap),
        }
    }

    /// Close: the node was pushed last, and leaves. False where it wasn't. Release: who finds the
    /// queue empty sees what the taker wrote before.
    #[inline]
    fn close(&self, node: NonNull<N::Target>) -> bool {
        #[cfg(loom)]
        if self.broken == Some(Broken::Close) {
            self.tail.store(ptr::null_mut(), Ordering::SeqCst);
            return true;
        }
        let (null, success) = (ptr::null_mut(), Ordering::AcqRel);
        self.tail.compare_exchange(node.as_ptr(), null, success, Ordering::Relaxed).is_ok()
    }

    /// The ordering of Link.
    #[inline]
    fn release(&self) -> Ordering {
        #[cfg(loom)]
        if self.broken == Some(Broken::Link) {
            return Ordering::Relaxed;
        }
        Ordering::Release
    }
}

impl<N: Node> Cursor<N> {
    /// That of a new queue.
    pub fn new() -> Self {
        Cursor { next: None, owns: PhantomData }
    }

    /// Whether it knows of a node in the queue. There may be others where it doesn't.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.next.is_some()
    }
}

impl<N: Node> Default for Fifo<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Node> Default for Cursor<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<N: Node> fmt::Debug for Fifo<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fifo").field("empty", &self.is_empty()).finish()
    }
}

impl<N: Node> fmt::Debug for Cursor<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("has_next", &self.has_next()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::inbox::tests::{Item, item};
    use crate::spin::{Spin, outwait};

    type Takes = Cursor<Box<Item>>;

    fn take(fifo: &Fifo<Box<Item>>, cursor: &mut Takes, last: bool) -> Taken<usize> {
        // SAFETY: each test has one queue and one cursor.
        match unsafe { fifo.take(cursor, last) } {
            Taken::Node(node) => Taken::Node(node.value),
            Taken::Empty => Taken::Empty,
            Taken::Last => Taken::Last,
            Taken::Gap => Taken::Gap,
        }
    }

    #[test]
    fn nodes_come_out_in_the_order_of_arrival_whether_or_not_it_was_empty_between() {
        let (fifo, mut cursor) = (Fifo::new(), Cursor::new());
        assert!(matches!(take(&fifo, &mut cursor, true), Taken::Empty));
        let mut next = 0;
        for (round, pushed) in [1, 3, 2, 1].into_iter().enumerate() {
            for value in 0..pushed {
                fifo.push(Box::new(item(round * 10 + value)));
            }
            for value in 0..pushed {
                assert!(!fifo.is_empty());
                assert!(
                    matches!(take(&fifo, &mut cursor, true), Taken::Node(v) if v == round * 10 + value)
                );
                next += 1;
            }
            assert!(fifo.is_empty() && !cursor.has_next());
            assert!(matches!(take(&fifo, &mut cursor, true), Taken::Empty));
        }
        assert_eq!(next, 7);
    }

    #[test]
    fn who_is_to_leave_the_pushers_line_alone_takes_all_but_the_last() {
        let (fifo, mut cursor) = (Fifo::new(), Cursor::new());
        for value in 0..3 {
            fifo.push(Box::new(item(value)));
        }
        assert!(matches!(take(&fifo, &mut cursor, false), Taken::Last), "it knows of none yet");
        assert!(matches!(take(&fifo, &mut cursor, true), Taken::Node(0)));
        assert!(matches!(take(&fifo, &mut cursor, false), Taken::Node(1)));
        assert!(matches!(take(&fifo, &mut cursor, false), Taken::Last));
        assert!(cursor.has_next() && !fifo.is_empty());
        assert!(matches!(take(&fifo, &mut cursor, true), Taken::Node(2)));
        assert!(matches!(take(&fifo, &mut cursor, true), Taken::Empty));
    }

    #[test]
    fn nothing_is_lost_or_doubled_under_many_pushers_and_takers() {
        const EACH: usize = if cfg!(miri) { 50 } else { 20_000 };
        let fifo = Arc::new(Fifo::new());
        let cursor = Arc::new(Spin::new((Cursor::new(), vec![Vec::new(); 3])));
        let threads: Vec<_> = (0..5)
            .map(|p| {
                let (fifo, cursor) = (Arc::clone(&fifo), Arc::clone(&cursor));
                std::thread::spawn(move || {
                    if p < 3 {
                        return (0..EACH).for_each(|n| fifo.push(Box::new(item(p * EACH + n))));
                    }
                    let mut tries = 0;
                    loop {
                        let (cursor, seen) = &mut *cursor.lock();
                        match take(&fifo, cursor, true) {
                            Taken::Node(value) => {
                                seen[value / EACH].push(value % EACH);
                                tries = 0;
                            }
                            _ if seen.iter().all(|of_one| of_one.len() == EACH) => return,
                            _ => {
                                outwait(tries);
                                tries += 1;
                            }
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let (_, seen) = &*cursor.lock();
        for of_one in seen {
            assert!(of_one.iter().copied().eq(0..EACH), "each pusher's nodes come in its order");
        }
    }
}
