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
        let colours = Arc::new(FlushModel::<F>::new(1));
        let ran = Arc::new(AtomicUsize::new(0));
        let colour = colours.enter(0);
        let worker = {
            let (colours, ran) = (Arc::clone(&colours), Arc::clone(&ran));
            thread::spawn(move || {
                ran.store(1, Ordering::Relaxed);
                colours.leave(0, colour);
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
        let colours = Arc::new(FlushModel::<FullFence>::new(1));
        let colour = colours.enter(0);
        let other = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || colours.flush())
        };
        let worker = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || colours.leave(0, colour))
        };
        colours.flush();
        other.join().unwrap();
        worker.join().unwrap();
    });
}

/// Instances `(pod, colour)`, each ended by a thread of its own, and one flush.
fn flush_against_two_leaves<F: FencePolicy>(of: [(usize, usize); 2]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let colours = Arc::new(FlushModel::<F>::new(2));
        let ran = Arc::new(AtomicUsize::new(0));
        for (pod, colour) in of {
            colours.enter_late(pod, colour);
        }
        let workers = of.map(|(pod, colour)| {
            let (colours, ran) = (Arc::clone(&colours), Arc::clone(&ran));
            thread::spawn(move || {
                ran.fetch_add(1, Ordering::Relaxed);
                colours.leave(pod, colour);
            })
        });
        colours.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 2);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn loom_flush_waits_for_one_colour_on_two_pods() {
    flush_against_two_leaves::<FullFence>([(0, 0), (1, 0)]);
}

#[test]
fn loom_flush_waits_for_a_late_queuer_of_an_older_colour() {
    flush_against_two_leaves::<FullFence>([(0, 0), (1, 2)]);
}

/// All colours in use, so that the flush has to wait for a free one; both that may become free do so
/// meanwhile.
fn flush_that_waits_for_a_colour<F: FencePolicy>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let colours = Arc::new(FlushModel::<F>::new(1));
        for colour in 0..3 {
            colours.enter_late(0, colour);
        }
        let worker = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || (0..3).rev().for_each(|colour| colours.leave(0, colour)))
        };
        colours.flush();
        worker.join().unwrap();
    });
}

#[test]
fn loom_flush_that_waits_for_a_colour_ends() {
    flush_that_waits_for_a_colour::<FullFence>();
}

#[test]
fn loom_flush_that_waits_for_a_colour_sleeps_for_ever_without_the_fences() {
    let said = must_fail(
        "loom_flush_that_waits_for_a_colour_sleeps_for_ever_without_the_fences",
        flush_that_waits_for_a_colour::<NoFence>,
    );
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}
