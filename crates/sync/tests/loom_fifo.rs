//! The fifo under every interleaving: nothing lost, nothing doubled, in order, contents seen; and a
//! node that was taken is touched by nobody any more.
#![cfg(loom)]

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fifo::{Broken, Cursor, Fifo, Taken};
use corewise_sync::inbox::{HasLink, Link};
use corewise_sync::model::must_fail;
use corewise_sync::{Mutex, cell::UnsafeCell, thread};

struct Item {
    link: Link,
    /// Written before the push without any ordering of its own: the queue has to carry it over.
    value: UnsafeCell<u32>,
}

// SAFETY: always the same field.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.link
    }
}

// SAFETY: who holds the only handle that isn't in a queue touches the value; loom checks it.
unsafe impl Sync for Item {}

/// Kept by the model, so that what touches a node too late touches memory that is there.
fn item() -> Arc<Item> {
    Arc::new(Item { link: Link::new(), value: UnsafeCell::new(0) })
}

fn push(fifo: &Fifo<Arc<Item>>, item: &Arc<Item>, value: u32) {
    // SAFETY: nobody else touches it before it is taken.
    item.value.with_mut(|p| unsafe { *p = value });
    fifo.push(Arc::clone(item));
}

/// Takes what can be had; whether that was all.
fn take(fifo: &Fifo<Arc<Item>>, cursor: &mut Cursor<Arc<Item>>, seen: &mut Vec<u32>) -> bool {
    loop {
        // SAFETY: one queue, one cursor.
        match unsafe { fifo.take(cursor, true) } {
            // SAFETY: the item was taken out: it is ours.
            Taken::Node(item) => seen.push(item.value.with(|p| unsafe { *p })),
            Taken::Empty => return true,
            Taken::Last => unreachable!("the last was asked for"),
            Taken::Gap => return false,
        }
    }
}

fn model() -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model
}

fn two_push_and_one_takes(fifo: fn() -> Fifo<Arc<Item>>) {
    model().check(move || {
        let fifo = Arc::new(fifo());
        let items = [(); 3].map(|()| item());
        let pushers: Vec<_> = (0..2)
            .map(|p| {
                let (fifo, items) = (Arc::clone(&fifo), items.clone());
                thread::spawn(move || {
                    push(&fifo, &items[p], p as u32 * 10);
                    if p == 0 {
                        push(&fifo, &items[2], 1);
                    }
                })
            })
            .collect();
        let (mut cursor, mut seen) = (Cursor::new(), Vec::new());
        take(&fifo, &mut cursor, &mut seen);
        for pusher in pushers {
            pusher.join().unwrap();
        }
        assert!(take(&fifo, &mut cursor, &mut seen), "nobody stands in a gap");
        assert!(fifo.is_empty());
        let at = |v| seen.iter().position(|&x| x == v).expect("nothing is lost");
        assert!(at(0) < at(1), "one pusher's nodes keep their order");
        at(10);
        assert_eq!(seen.len(), 3, "nothing is doubled");
    });
}

#[test]
fn loom_fifo_loses_nothing_and_carries_the_contents() {
    two_push_and_one_takes(Fifo::new);
}

#[test]
fn loom_fifo_that_links_without_release_doesnt_carry_the_contents() {
    let said = must_fail("loom_fifo_that_links_without_release_doesnt_carry_the_contents", || {
        two_push_and_one_takes(|| Fifo::broken(Broken::Link))
    });
    assert!(said.is_empty() || said.contains("Causality violation"), "{said}");
}

#[test]
fn loom_fifo_that_closes_without_a_look_loses_a_node() {
    let said = must_fail("loom_fifo_that_closes_without_a_look_loses_a_node", || {
        two_push_and_one_takes(|| Fifo::broken(Broken::Close));
    });
    assert!(said.is_empty() || said.contains("is lost") || said.contains("in a gap"), "{said}");
}

/// What is taken is pushed again at once, elsewhere and here: whoever still wrote into it would spoil
/// that queue's order.
#[test]
fn loom_fifo_a_node_may_be_pushed_again_as_soon_as_it_was_taken() {
    model().check(|| {
        let fifo = Arc::new(Fifo::new());
        let items = [(); 2].map(|()| item());
        push(&fifo, &items[0], 1);
        let pusher = {
            let (fifo, item) = (Arc::clone(&fifo), Arc::clone(&items[1]));
            thread::spawn(move || push(&fifo, &item, 2))
        };
        let (mut cursor, mut seen) = (Cursor::new(), Vec::new());
        // SAFETY: one queue, one cursor.
        if let Taken::Node(item) = unsafe { fifo.take(&mut cursor, true) } {
            let (other, mut others) = (Fifo::new(), Cursor::new());
            other.push(item);
            pusher.join().unwrap();
            assert!(take(&other, &mut others, &mut seen));
            assert_eq!(seen, [1], "nothing was linked behind it");
        } else {
            pusher.join().unwrap();
        }
        assert!(take(&fifo, &mut cursor, &mut seen));
        assert_eq!(seen, [1, 2]);
    });
}

#[test]
fn loom_fifo_two_who_take_under_a_lock_get_each_node_once() {
    model().check(|| {
        let fifo = Arc::new(Fifo::new());
        let cursor = Arc::new(Mutex::new(Cursor::new()));
        let got = Arc::new(AtomicUsize::new(0));
        push(&fifo, &item(), 1);
        let taker = {
            let (fifo, cursor, got) = (Arc::clone(&fifo), Arc::clone(&cursor), Arc::clone(&got));
            thread::spawn(move || {
                let mut seen = Vec::new();
                take(&fifo, &mut cursor.lock(), &mut seen);
                got.fetch_add(seen.len(), Ordering::Relaxed);
            })
        };
        push(&fifo, &item(), 2);
        let mut seen = Vec::new();
        assert!(take(&fifo, &mut cursor.lock(), &mut seen), "its own push is over");
        taker.join().unwrap();
        assert_eq!(seen.len() + got.load(Ordering::Relaxed), 2);
    });
}
