//! The limiter's hand-over: no instance waits for ever, none is let through twice or beyond the
//! maximum, and instances that are queued in order are let through in order.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::model::SlotModel;

/// Checks one place, which is taken; its holder gives it up while another instance is queued.
fn put_against_queue<F: FencePolicy>() {
    loom::model(|| {
        let slot = Arc::new(SlotModel::<F>::new(1));
        slot.queue(0, 0);
        let worker = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.put())
        };
        slot.queue(1, 1);
        worker.join().unwrap();
        assert_eq!(slot.out(), [0, 1], "it waits for nobody");
        assert_eq!(slot.sizes(), (1, 0));
    });
}

#[test]
fn loom_limiter_a_freed_place_goes_to_the_item_being_queued() {
    put_against_queue::<FullFence>();
}

#[test]
fn loom_limiter_without_the_fences_an_instance_waits_for_ever() {
    must_fail(
        "loom_limiter_without_the_fences_an_instance_waits_for_ever",
        put_against_queue::<NoFence>,
    );
}

/// Checks one instance that waits already; the place is given up while one more of the same link is
/// queued.
#[test]
fn loom_limiter_no_item_passes_one_that_waits_in_the_same_link() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let slot = Arc::new(SlotModel::<FullFence>::new(1));
        slot.queue(0, 0);
        slot.queue(0, 1);
        let worker = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.put();
                slot.put();
            })
        };
        slot.queue(0, 2);
        worker.join().unwrap();
        assert_eq!(slot.out(), [0, 1, 2]);
        assert_eq!(slot.sizes(), (1, 0));
    });
}

#[test]
fn loom_limiter_two_ends_at_once_let_two_through() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let slot = Arc::new(SlotModel::<FullFence>::new(2));
        for n in 0..3 {
            slot.queue(n, n as u32);
        }
        let worker = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.put())
        };
        slot.put();
        slot.queue(3, 3);
        worker.join().unwrap();
        let mut out = slot.out();
        out.sort_unstable();
        assert_eq!(out, [0, 1, 2, 3]);
        assert_eq!(slot.sizes(), (2, 0));
    });
}

#[test]
fn loom_limiter_a_cancelled_instance_stalls_nobody() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let slot = Arc::new(SlotModel::<FullFence>::new(1));
        slot.queue(0, 0);
        slot.queue(1, 1);
        let worker = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.put())
        };
        let cancelled = slot.cancel(1, 1);
        worker.join().unwrap();
        slot.queue(2, 2);
        if cancelled {
            assert_eq!(slot.out(), [0, 2]);
        } else {
            assert_eq!((slot.out(), slot.sizes()), (vec![0, 1], (1, 1)));
        }
    });
}

/// Checks a queuer that counts itself in and looks at the gate; a drain closes the gate and looks
/// at the count.
fn drain_against_queue<F: FencePolicy>() {
    loom::model(|| {
        let slot = Arc::new(SlotModel::<F>::new(0));
        let in_flight = Arc::new(AtomicUsize::new(0));
        let queuer = {
            let (slot, in_flight) = (Arc::clone(&slot), Arc::clone(&in_flight));
            thread::spawn(move || {
                // Enter.
                in_flight.fetch_add(1, Ordering::SeqCst);
                slot.accepts()
            })
        };
        slot.set_draining();
        // Count is done as a flush does it, behind its fence.
        F::full();
        let empty = in_flight.load(Ordering::Acquire) == 0;
        let accepted = queuer.join().unwrap();
        assert!(!(empty && accepted), "drained, and yet something was accepted");
    });
}

#[test]
fn loom_limiter_a_drain_sees_what_was_accepted() {
    drain_against_queue::<FullFence>();
}

#[test]
fn loom_limiter_without_the_fences_a_drain_misses_what_was_accepted() {
    must_fail(
        "loom_limiter_without_the_fences_a_drain_misses_what_was_accepted",
        drain_against_queue::<NoFence>,
    );
}
