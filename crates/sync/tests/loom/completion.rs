//! Completion and countdown under every interleaving: no waiter sleeps for ever, writes are seen.

use std::sync::Arc;

use corewise_sync::{Completion, Countdown, cell::UnsafeCell, thread};

struct Shared {
    event: Completion,
    /// Value that is written before the event, read after it: loom reports a race if the event
    /// doesn't order them.
    value: UnsafeCell<u32>,
}

#[test]
fn loom_completion_wakes_every_waiter_and_publishes() {
    // Three threads: four preemptions a run are enough for each pair of steps to meet in each
    // order, and keep the model under a few seconds.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let shared = Arc::new(Shared { event: Completion::new(), value: UnsafeCell::new(0) });
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.event.wait();
                    // SAFETY: the writer is done: that is what the event says.
                    assert_eq!(shared.value.with(|p| unsafe { *p }), 7);
                })
            })
            .collect();
        // SAFETY: nobody reads before the event.
        shared.value.with_mut(|p| unsafe { *p = 7 });
        shared.event.complete();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn loom_countdown_completes_after_the_last_and_publishes_all() {
    loom::model(|| {
        let countdown = Arc::new(Countdown::new(2));
        let values = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let workers: Vec<_> = (0..2)
            .map(|n| {
                let (countdown, values) = (Arc::clone(&countdown), Arc::clone(&values));
                thread::spawn(move || {
                    // SAFETY: each thread writes its own cell, before the countdown.
                    values[n].with_mut(|p| unsafe { *p = 1 });
                    countdown.done();
                })
            })
            .collect();
        countdown.wait();
        for value in values.iter() {
            // SAFETY: both writers are done.
            assert_eq!(value.with(|p| unsafe { *p }), 1);
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
}
