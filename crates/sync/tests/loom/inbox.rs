//! The inbox under every interleaving: nothing lost, nothing doubled, contents seen.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::inbox::{ClosableInbox, HasLink, Inbox, Link};
use corewise_sync::{cell::UnsafeCell, thread};

struct Item {
    link: Link,
    /// Value that is written before the push without any ordering of its own: the inbox has to
    /// transfer it.
    value: UnsafeCell<u32>,
}

// SAFETY: always the same field.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.link
    }
}

fn push(inbox: &Inbox<Box<Item>>, value: u32) -> bool {
    let item = Box::new(Item { link: Link::new(), value: UnsafeCell::new(0) });
    // SAFETY: nobody else has the item yet.
    item.value.with_mut(|p| unsafe { *p = value });
    inbox.push(item)
}

fn take(inbox: &Inbox<Box<Item>>) -> Vec<u32> {
    // SAFETY: the item was taken out: it is ours.
    inbox.take().map(|item| item.value.with(|p| unsafe { *p })).collect()
}

#[test]
fn loom_inbox_loses_nothing_and_carries_the_contents() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new());
        let pushers: Vec<_> = (0..2)
            .map(|p| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || {
                    let first = push(&inbox, p * 10);
                    if p == 0 {
                        push(&inbox, 1);
                    }
                    usize::from(first)
                })
            })
            .collect();
        let mut seen = take(&inbox);
        for pusher in pushers {
            pusher.join().unwrap();
        }
        seen.extend(take(&inbox));
        let at = |v| seen.iter().position(|&x| x == v).expect("nothing is lost");
        assert!(at(0) < at(1), "one pusher's nodes keep their order");
        at(10);
        assert_eq!(seen.len(), 3, "nothing is doubled");
    });
}

#[test]
fn loom_inbox_a_shared_node_may_be_pushed_again_as_soon_as_it_was_taken() {
    loom::model(|| {
        let item = |value| Arc::new(Item { link: Link::new(), value: UnsafeCell::new(value) });
        let (first, second) = (item(1), item(2));
        let inbox = Arc::new(Inbox::new());
        inbox.push(Arc::clone(&first));
        inbox.push(Arc::clone(&second));
        let taken = Arc::new(AtomicBool::new(false));
        let taker = {
            let (inbox, taken) = (Arc::clone(&inbox), Arc::clone(&taken));
            thread::spawn(move || {
                let mut batch = inbox.take();
                assert!(batch.next().is_some());
                // This orders nothing: it only keeps the push below from being refused.
                taken.store(true, Ordering::Relaxed);
                assert!(batch.next().is_some() && batch.next().is_none());
            })
        };
        if taken.load(Ordering::Relaxed) {
            // The taker has read this node's link before: this push may overwrite it.
            let other = Inbox::new();
            other.push(first);
            assert_eq!(other.take().count(), 1);
        }
        taker.join().unwrap();
    });
}

#[test]
fn loom_inbox_exactly_one_push_finds_it_empty() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new());
        let other = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || push(&inbox, 1))
        };
        let mine = push(&inbox, 2);
        assert!(mine ^ other.join().unwrap());
        assert_eq!(take(&inbox).len(), 2);
    });
}

#[test]
fn loom_inbox_a_node_pushed_while_it_is_closed_comes_back_or_is_taken_by_who_closes() {
    loom::model(|| {
        let inbox = Arc::new(ClosableInbox::new());
        let other = {
            let inbox = Arc::clone(&inbox);
            thread::spawn(move || {
                let item = Item { link: Link::new(), value: UnsafeCell::new(1) };
                usize::from(inbox.push(Box::new(item)).is_err())
            })
        };
        let taken = inbox.take().count() + inbox.close().count();
        assert_eq!(taken + other.join().unwrap(), 1, "it is left in there for ever");
        assert!(inbox.take().is_empty());
    });
}
