//! Model of the bell: what is pushed is taken, by a thread that was awake or by one that was woken.

use std::sync::Arc;

use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::{Bell, Parker, thread};

struct Item(Link);

// SAFETY: always the one field of `self`.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.0
    }
}

/// Models pushers, and a thread that ends when it has the items of all. A lost wake-up is a
/// deadlock, which loom reports.
fn pushers_meet_a_thread_that_dozes<F: FencePolicy>(pushers: usize) {
    let shared = Arc::new((Inbox::<Box<Item>>::new(), Bell::<F>::new()));
    let parker = Parker::new();
    let threads: Vec<_> = (0..pushers)
        .map(|_| {
            let (shared, unparker) = (Arc::clone(&shared), parker.unparker());
            thread::spawn(move || {
                shared.0.push(Box::new(Item(Link::new())));
                if shared.1.must_ring() {
                    unparker.unpark();
                }
            })
        })
        .collect();
    let mut taken = 0;
    while taken != pushers {
        taken += shared.0.take().count();
        if taken == pushers {
            break;
        }
        shared.1.doze();
        if shared.0.is_empty() {
            parker.park();
        }
        shared.1.awake();
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn loom_a_push_that_meets_a_dozing_thread_is_taken() {
    // With two preemptions: more take minutes.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| pushers_meet_a_thread_that_dozes::<FullFence>(2));
    loom::model(|| pushers_meet_a_thread_that_dozes::<FullFence>(1));
}

#[test]
fn loom_without_the_fences_the_thread_sleeps_on_a_full_inbox() {
    let said = corewise_sync::model::must_fail(
        "loom_without_the_fences_the_thread_sleeps_on_a_full_inbox",
        || loom::model(|| pushers_meet_a_thread_that_dozes::<NoFence>(1)),
    );
    assert!(said.contains("deadlock"), "{said}");
}
