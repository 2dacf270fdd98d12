//! Flushes of a queue: a flush ends, though not before all earlier instances have, and sees their
//! writes.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::model::{CameFirst, CountPolicy, FlushModel, LooksNowhere, RealCounts};

fn flush_against_leave<C: CountPolicy>() {
    loom::model(|| {
        let colours = Arc::new(FlushModel::<C>::new(1, 1));
        let ran = Arc::new(AtomicUsize::new(0));
        let colour = colours.enter(0, 0);
        let worker = {
            let (colours, ran) = (Arc::clone(&colours), Arc::clone(&ran));
            thread::spawn(move || {
                ran.store(1, Ordering::Relaxed);
                colours.leave(0, 0, colour);
            })
        };
        colours.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        worker.join().unwrap();
    });
}

#[test]
fn loom_flush_ends_after_what_came_before() {
    flush_against_leave::<RealCounts>();
}

#[test]
fn loom_flush_sleeps_for_ever_where_the_last_one_does_not_look() {
    let said = must_fail(
        "loom_flush_sleeps_for_ever_where_the_last_one_does_not_look",
        flush_against_leave::<LooksNowhere>,
    );
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

/// Checks an instance that came before the flush; another of its colour comes and goes meanwhile,
/// which must not be taken for it.
fn flush_beside_one_that_comes_and_goes<C: CountPolicy>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let colours = Arc::new(FlushModel::<C>::new(1, 1));
        let ran = Arc::new(AtomicUsize::new(0));
        let colour = colours.enter(0, 0);
        let other = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || {
                colours.enter_late(0, 0, colour);
                colours.leave(0, 0, colour);
            })
        };
        let worker = {
            let (colours, ran) = (Arc::clone(&colours), Arc::clone(&ran));
            thread::spawn(move || {
                ran.store(1, Ordering::Relaxed);
                colours.leave(0, 0, colour);
            })
        };
        colours.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        other.join().unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn loom_flush_waits_for_its_own_beside_one_that_comes_and_goes() {
    flush_beside_one_that_comes_and_goes::<RealCounts>();
}

#[test]
fn loom_flush_ends_too_early_where_those_that_came_are_counted_first() {
    must_fail(
        "loom_flush_ends_too_early_where_those_that_came_are_counted_first",
        flush_beside_one_that_comes_and_goes::<CameFirst>,
    );
}

#[test]
fn loom_flush_two_flushes_at_once_both_end() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let colours = Arc::new(FlushModel::<RealCounts>::new(1, 1));
        let colour = colours.enter(0, 0);
        let other = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || colours.flush())
        };
        let worker = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || colours.leave(0, 0, colour))
        };
        colours.flush();
        other.join().unwrap();
        worker.join().unwrap();
    });
}

/// Checks instances `(pod, stripe, colour)`, each ended by a thread of its own, and one flush.
fn flush_against_two_leaves(pods: usize, of: [(usize, u32, u8); 2]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let stripes = if pods == 1 { 2 } else { 1 };
        let colours = Arc::new(FlushModel::<RealCounts>::new(pods, stripes));
        let ran = Arc::new(AtomicUsize::new(0));
        for (pod, stripe, colour) in of {
            colours.enter_late(pod, stripe, colour);
        }
        let workers = of.map(|(pod, stripe, colour)| {
            let (colours, ran) = (Arc::clone(&colours), Arc::clone(&ran));
            thread::spawn(move || {
                ran.fetch_add(1, Ordering::Relaxed);
                colours.leave(pod, stripe, colour);
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
    flush_against_two_leaves(2, [(0, 0, 0), (1, 0, 0)]);
}

#[test]
fn loom_flush_waits_for_one_colour_on_two_stripes() {
    flush_against_two_leaves(1, [(0, 0, 0), (0, 1, 0)]);
}

#[test]
fn loom_flush_waits_for_two_of_one_pair() {
    flush_against_two_leaves(1, [(0, 0, 0), (0, 0, 0)]);
}

#[test]
fn loom_flush_waits_for_a_late_queuer_of_an_older_colour() {
    flush_against_two_leaves(2, [(0, 0, 0), (1, 0, 2)]);
}

/// Checks a flush that finds all colours in use, and has to wait for a free one. Meanwhile both
/// colours that can become free do so.
fn flush_that_waits_for_a_colour<C: CountPolicy>() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let colours = Arc::new(FlushModel::<C>::new(1, 1));
        for colour in 0..3 {
            colours.enter_late(0, 0, colour);
        }
        let worker = {
            let colours = Arc::clone(&colours);
            thread::spawn(move || {
                (0..3).rev().for_each(|colour| colours.leave(0, 0, colour));
            })
        };
        colours.flush();
        worker.join().unwrap();
    });
}

#[test]
fn loom_flush_that_waits_for_a_colour_ends() {
    flush_that_waits_for_a_colour::<RealCounts>();
}

#[test]
fn loom_flush_that_waits_for_a_colour_sleeps_for_ever_where_the_last_one_does_not_look() {
    let said = must_fail(
        "loom_flush_that_waits_for_a_colour_sleeps_for_ever_where_the_last_one_does_not_look",
        flush_that_waits_for_a_colour::<LooksNowhere>,
    );
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}
