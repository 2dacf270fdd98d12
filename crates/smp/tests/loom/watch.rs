//! Model: a future begins to wait, against the watching thread that goes to rest
//! (`src/watch/README.md`).

use std::sync::Arc;

use corewise_smp::model::wrong::Alert;
use corewise_sync::Parker;
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::model::must_fail;
use loom::thread;

/// Lets `waiters` begin to wait while the thread, which has found no waiter, goes to rest. It has
/// to find each.
fn watch<F: FencePolicy>(waiters: usize) {
    let mut builder = loom::model::Builder::new();
    // Two waiters have some hundred thousand more interleavings than the loss of one needs.
    builder.preemption_bound = (waiters > 1).then_some(2);
    builder.check(move || {
        let alert = Arc::new(Alert::<F>::new());
        assert!(alert.raise(), "so it isn't at rest at first");
        let waits: Arc<[AtomicBool]> = (0..waiters).map(|_| AtomicBool::new(false)).collect();
        let parker = Parker::new();
        let threads: Vec<_> = (0..waiters)
            .map(|own| {
                let (alert, waits, calls) = (alert.clone(), waits.clone(), parker.unparker());
                thread::spawn(move || {
                    // Publish.
                    waits[own].store(true, Ordering::Relaxed);
                    if alert.raise() {
                        calls.unpark();
                    }
                })
            })
            .collect();
        let found = || waits.iter().filter(|waits| waits.load(Ordering::Relaxed)).count();
        // Once it has found one it looks from time to time, and so finds the others.
        while alert.lower(|| found() > 0) {
            // A waiter that it isn't called for is a deadlock here.
            parker.park();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn loom_a_new_waiter_is_seen_or_calls_the_thread() {
    watch::<FullFence>(1);
}

#[test]
fn loom_of_two_who_begin_to_wait_one_is_seen_or_calls_the_thread() {
    watch::<FullFence>(2);
}

#[test]
fn loom_without_the_fences_a_waiter_is_neither_seen_nor_calls() {
    must_fail("loom_without_the_fences_a_waiter_is_neither_seen_nor_calls", || watch::<NoFence>(1));
}
