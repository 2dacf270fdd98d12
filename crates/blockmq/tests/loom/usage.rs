//! Models of the freeze: enter, exit, and the waiters outside; and of waits for room.
//! `src/admission/usage.rs` names the steps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_blockmq::model::Usage;
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{
    Asymmetric, AsymmetricPolicy, FencePolicy, FullFence, NoFence, NoHeavy, NoLight,
};
use corewise_sync::inbox::{HasLink, Inbox, Link};
use corewise_sync::model::must_fail;

struct Item(Link);

// SAFETY: always the one field of `self`.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.0
    }
}

struct Shared<F: AsymmetricPolicy> {
    usage: Usage<F>,
    /// P: owned by the thread inside, and by the freezer once it is empty. Loom reports a race.
    cell: UnsafeCell<u32>,
    outside: Inbox<Box<Item>>,
}

// SAFETY: the model checks this: one thread at a time touches `cell`.
unsafe impl<F: AsymmetricPolicy> Sync for Shared<F> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<F: AsymmetricPolicy> Send for Shared<F> {}

impl<F: AsymmetricPolicy> Shared<F> {
    fn touch(&self) {
        // SAFETY: the caller is inside, or has waited until no request is; loom checks it.
        self.cell.with_mut(|cell| unsafe { *cell += 1 });
    }

    /// Sends one request: inside, or outside until it is let in.
    fn request(&self) {
        if let Some(generation) = self.usage.enter(0) {
            self.touch();
            self.usage.exit(0, generation);
            return;
        }
        self.outside.push(Box::new(Item(Link::new())));
        if !self.usage.is_frozen_fenced() {
            self.let_in();
        }
    }

    fn let_in(&self) {
        for _item in self.outside.take() {
            self.request();
        }
    }
}

fn a_request_meets_a_freeze<F: AsymmetricPolicy>() {
    let shared = Arc::new(Shared::<F> {
        usage: Usage::new(1, 8),
        cell: UnsafeCell::new(0),
        outside: Inbox::new(),
    });
    let other = {
        let shared = Arc::clone(&shared);
        loom::thread::spawn(move || shared.request())
    };
    shared.usage.start_freeze();
    shared.usage.wait_empty();
    shared.touch();
    if shared.usage.unfreeze() {
        shared.let_in();
    }
    other.join().unwrap();
    // SAFETY: the other thread is gone.
    assert_eq!(shared.cell.with(|cell| unsafe { *cell }), 2, "left outside for ever");
}

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn loom_nobody_is_inside_after_a_freeze_and_nobody_is_left_outside_after_the_thaw() {
    model(a_request_meets_a_freeze::<Asymmetric>);
}

#[test]
fn loom_without_the_fences_of_the_requests_the_freeze_fails() {
    let failed = catch_unwind(AssertUnwindSafe(|| model(a_request_meets_a_freeze::<NoLight>)));
    assert!(failed.is_err(), "without the light fences the model must fail");
}

#[test]
fn loom_without_the_fences_of_the_freezer_the_freeze_fails() {
    let failed = catch_unwind(AssertUnwindSafe(|| model(a_request_meets_a_freeze::<NoHeavy>)));
    assert!(failed.is_err(), "without the heavy fences the model must fail");
}

/// Models two requests that leave a frozen queue by counts of their own. Models have a full fence
/// for a light one, so there is none: the accesses that it orders are over here.
fn the_last_two_leave<L: FencePolicy>() {
    let usage = Arc::new(Usage::<NoLight, L>::new(2, 8));
    let inside = [0, 1].map(|slot| (slot, usage.enter(slot).unwrap()));
    usage.start_freeze();
    let others = inside.map(|(slot, generation)| {
        let usage = Arc::clone(&usage);
        loom::thread::spawn(move || usage.exit(slot, generation))
    });
    usage.wait_empty();
    for other in others {
        other.join().unwrap();
    }
}

#[test]
fn loom_a_freezer_is_told_by_the_last_of_all_by_whichever_counts_they_leave() {
    model(the_last_two_leave::<FullFence>);
}

#[test]
fn loom_without_the_fence_of_those_who_leave_each_takes_the_other_for_the_last() {
    must_fail(
        "loom_without_the_fence_of_those_who_leave_each_takes_the_other_for_the_last",
        || {
            model(the_last_two_leave::<NoFence>);
        },
    );
}

/// Models a waiter for the room of one request, which is in use.
fn a_waiter_for_room_meets_the_exit<F: AsymmetricPolicy>() {
    let usage = Arc::new(Usage::<F>::new(1, 1));
    let generation = usage.enter(0).unwrap();
    let other = {
        let usage = Arc::clone(&usage);
        loom::thread::spawn(move || usage.exit(0, generation))
    };
    usage.wait_for_room(0);
    assert!(usage.enter(0).is_some());
    other.join().unwrap();
}

/// Models the same for the room outside of a frozen queue.
fn a_waiter_for_room_meets_the_thaw<F: AsymmetricPolicy>() {
    let usage = Arc::new(Usage::<F>::new(1, 1));
    usage.park();
    let other = {
        let usage = Arc::clone(&usage);
        loom::thread::spawn(move || usage.unpark())
    };
    usage.wait_for_room(0);
    other.join().unwrap();
}

#[test]
fn loom_a_waiter_for_room_is_woken() {
    model(a_waiter_for_room_meets_the_exit::<Asymmetric>);
    model(a_waiter_for_room_meets_the_thaw::<Asymmetric>);
    // Two waiters, and one exit by which both go on: the first has room, and leaves.
    model(|| {
        let usage = Arc::new(Usage::<Asymmetric>::new(1, 1));
        let generation = usage.enter(0).unwrap();
        let other = {
            let usage = Arc::clone(&usage);
            loom::thread::spawn(move || usage.wait_for_room(0))
        };
        usage.exit(0, generation);
        usage.wait_for_room(0);
        other.join().unwrap();
    });
}

#[test]
fn loom_without_the_fence_of_the_exit_a_waiter_for_room_sleeps_on() {
    must_fail("loom_without_the_fence_of_the_exit_a_waiter_for_room_sleeps_on", || {
        model(a_waiter_for_room_meets_the_exit::<NoLight>);
    });
}

#[test]
fn loom_without_its_fence_a_waiter_for_room_sleeps_on() {
    must_fail("loom_without_its_fence_a_waiter_for_room_sleeps_on", || {
        model(a_waiter_for_room_meets_the_exit::<NoHeavy>);
    });
}
