//! Flushing a queue: a flush ends, not before what came before it has, and sees what that wrote.
#![cfg(loom)]

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::model::FlushModel;

fn flush_against_leave<F: FencePolicy>() {
    loom::model(|| {
        let colours = Arc::new(FlushModel::<F>::new());
        let ran = Arc::new(AtomicUsize::new(0));
        let colour = colours.enter();
        let worker = {
            let (colours, ran) = (Arc::clone(&colours), Arc::clone(&ran));
            thread::spawn(move || {
                ran.store(1, Ordering::Relaxed);
                colours.leave(colour);
            })
        };
        colours.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        worker.join().unwrap();
    });
}

#[test]
fn loom_flush_ends_after_what_came_before() {
    flush_against_leave::<FullFence>();
}

#[test]
fn loom_flush_without_the_fences_sleeps_for_ever() {
    let said =
        must_fail("loom_flush_without_the_fences_sleeps_for_ever", flush_against_leave::<NoFence>);
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_flush_two_flushes_at_once_both_end() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let colours = Arc::new(FlushModel::<FullFence>::new());
        let colour = colours.enter();
        let other = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || colours.flush())
        };
        let worker = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || colours.leave(colour))
        };
        colours.flush();
        other.join().unwrap();
        worker.join().unwrap();
    });
}
