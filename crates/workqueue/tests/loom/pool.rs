//! The sleep protocol of a pool, the very code that runs: each push has a worker that takes it.
//!
//! A lost wake-up shows as a deadlock, which loom reports. Without the full fences it must.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::Work;
use corewise_workqueue::model::{ModelWorker, PoolModel};

use crate::bounded::{bounded, more_if_long};

fn counting(count: &Arc<AtomicUsize>) -> Work {
    let count = Arc::clone(count);
    Work::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    })
}

/// Pushes on pool 0, each of which may meet this worker awake, going to sleep, or asleep: it runs
/// them all.
fn pushes_meet<F: FencePolicy>(pools: &PoolModel<F>, worker: ModelWorker<F>, pushes: usize) {
    let count = Arc::new(AtomicUsize::new(0));
    let done = Arc::clone(&count);
    let thread =
        thread::spawn(move || worker.work_until(|| done.load(Ordering::Relaxed) == pushes));
    for _ in 0..pushes {
        assert!(pools.push(0, &counting(&count)));
    }
    thread.join().unwrap();
}

/// Checks one worker; two pushes, each of which may meet it awake, going to sleep, or asleep.
fn push_against_park<F: FencePolicy>(new: fn() -> PoolModel<F>) {
    bounded(2).check(move || {
        let pools = new();
        pushes_meet(&pools, pools.enlist(0), 2);
    });
}

#[test]
fn loom_pool_no_push_is_left_to_a_worker_that_spins_before_it_sleeps() {
    bounded(2).check(|| {
        let pools = PoolModel::<FullFence>::new(1, 1);
        let count = Arc::new(AtomicUsize::new(0));
        let worker = pools.enlist(0);
        let done = Arc::clone(&count);
        let thread = thread::spawn(move || worker.spin_until(|| done.load(Ordering::Relaxed) == 2));
        for _ in 0..2 {
            assert!(pools.push(0, &counting(&count)));
        }
        thread.join().unwrap();
    });
}

/// Checks one worker, which searches before it sleeps; two pushes, which leave it alone meanwhile.
fn push_against_search<F: FencePolicy>() {
    bounded(2).check(|| {
        let pools = PoolModel::<F>::new(1, 1);
        let count = Arc::new(AtomicUsize::new(0));
        let worker = pools.enlist(0);
        let done = Arc::clone(&count);
        let until = move || done.load(Ordering::Relaxed) == 2;
        let thread = thread::spawn(move || worker.search_until(until));
        for _ in 0..2 {
            assert!(pools.push(0, &counting(&count)));
        }
        thread.join().unwrap();
    });
}

#[test]
fn loom_pool_no_push_is_left_to_a_search_that_ends() {
    push_against_search::<FullFence>();
}

#[test]
fn loom_pool_without_the_fences_a_push_is_left_to_a_search_that_ends() {
    let said = must_fail(
        "loom_pool_without_the_fences_a_push_is_left_to_a_search_that_ends",
        push_against_search::<NoFence>,
    );
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_pool_a_sleeping_searcher_is_not_woken() {
    let said = must_fail("loom_pool_a_sleeping_searcher_is_not_woken", || {
        bounded(2).check(|| {
            let pools = PoolModel::<FullFence>::new(1, 1);
            let count = Arc::new(AtomicUsize::new(0));
            let worker = pools.enlist(0);
            let done = Arc::clone(&count);
            let until = move || done.load(Ordering::Relaxed) == 1;
            let thread = thread::spawn(move || worker.search_asleep(until));
            assert!(pools.push(0, &counting(&count)));
            thread.join().unwrap();
        });
    });
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_pool_no_push_is_left_to_a_sleeping_worker() {
    push_against_park(|| PoolModel::<FullFence>::new(1, 1));
}

#[test]
fn loom_pool_no_push_that_finds_the_ring_full_is_left_to_a_sleeping_worker() {
    push_against_park(|| PoolModel::<FullFence>::spilling(1, 1));
}

#[test]
fn loom_pool_without_the_fences_a_push_is_lost() {
    let said = must_fail("loom_pool_without_the_fences_a_push_is_lost", || {
        push_against_park(|| PoolModel::<NoFence>::new(1, 1));
    });
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_pool_without_the_fences_a_push_that_finds_the_ring_full_is_lost() {
    let name = "loom_pool_without_the_fences_a_push_that_finds_the_ring_full_is_lost";
    let said = must_fail(name, || push_against_park(|| PoolModel::<NoFence>::spilling(1, 1)));
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

/// Checks an idle worker beside another that is known to run one tiny item after the other. A push
/// leaves its item to that one, which may be about to park.
fn push_against_the_park_of_a_taker<F: FencePolicy>() {
    bounded(2).check(|| {
        let pools = PoolModel::<F>::new(1, 2);
        let [idle, taker] = [pools.enlist(0), pools.enlist(0)];
        idle.step();
        taker.takes_a_stream();
        pushes_meet(&pools, taker, 1);
    });
}

#[test]
fn loom_pool_items_left_to_a_taker_are_taken_before_it_parks() {
    push_against_the_park_of_a_taker::<FullFence>();
}

#[test]
fn loom_pool_without_the_fences_items_left_to_a_taker_are_lost() {
    let name = "loom_pool_without_the_fences_items_left_to_a_taker_are_lost";
    let said = must_fail(name, push_against_the_park_of_a_taker::<NoFence>);
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

/// Checks a worker that reserves two items and blocks in the first, until the second has run. The
/// core that it leaves is for another worker, which parks meanwhile, or is about to.
fn a_batch_is_left_at_a_block(told: bool) {
    bounded(2).check(move || {
        let model = PoolModel::<FullFence>::new(1, 2);
        model.follow(1, &[1]);
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let takes = Arc::new(model.enlist(0));
        takes.takes_at_once(2);
        let (blocks, enlists) = (Arc::clone(&takes), model.clone());
        let first = Work::new(move || {
            // Only now, so that it isn't this one that takes the first item.
            let (other, over) = (enlists.enlist(0), Arc::clone(&waits));
            let thread = thread::spawn(move || other.work_until(|| over.is_complete()));
            if told {
                blocks.blocks();
            }
            waits.wait();
            thread.join().unwrap();
        });
        let second = Work::new(move || rings.complete());
        model.push(0, &first);
        model.push(0, &second);
        takes.step();
        assert!(second_ran.is_complete());
    });
}

#[test]
fn loom_pool_items_reserved_by_a_blocked_worker_are_run_by_another() {
    a_batch_is_left_at_a_block(true);
}

#[test]
fn loom_pool_reserved_items_are_stranded_if_the_blocking_is_not_announced() {
    let name = "loom_pool_reserved_items_are_stranded_if_the_blocking_is_not_announced";
    let said = must_fail(name, || a_batch_is_left_at_a_block(false));
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

/// Checks a worker that reserves two items; the first ends only when the second has run, without
/// declaring that it blocks. If there is a core for another worker, that one takes the second, also
/// if it was about to park.
#[test]
fn loom_pool_no_worker_parks_beside_what_another_has_reserved() {
    bounded(2).check(|| {
        let model = PoolModel::<FullFence>::new(1, 2);
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let [takes, other] = [model.enlist(0), model.enlist(0)];
        takes.takes_at_once(2);
        let first = Work::new(move || waits.wait());
        let second = Work::new(move || rings.complete());
        // Four are shared by two.
        let ran = Arc::new(AtomicUsize::new(0));
        for work in [&first, &second, &counting(&ran), &counting(&ran)] {
            model.push(0, work);
        }
        let over = Arc::clone(&second_ran);
        let thread = thread::spawn(move || other.work_until(|| over.is_complete()));
        takes.step();
        thread.join().unwrap();
    });
}

/// Checks a worker of a pool with two stripes, one CPU of which can be used. Two pushes come from
/// different CPUs at once: it has to see both before it parks.
fn push_on_either_stripe_against_park<F: FencePolicy>() {
    bounded(more_if_long(1)).check(|| {
        let pools = PoolModel::<F>::new(1, 2);
        pools.follow(1, &[1]);
        let count = Arc::new(AtomicUsize::new(0));
        let worker = pools.enlist(0);
        let done = Arc::clone(&count);
        let thread = thread::spawn(move || worker.work_until(|| done.load(Ordering::Relaxed) == 2));
        let pusher = {
            let (pools, work) = (pools.clone(), counting(&count));
            thread::spawn(move || assert!(pools.push_from(0, 0, &work)))
        };
        assert!(pools.push_from(1, 0, &counting(&count)));
        pusher.join().unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn loom_pool_no_push_on_either_stripe_is_left_to_a_sleeping_worker() {
    push_on_either_stripe_against_park::<FullFence>();
}

#[test]
fn loom_pool_without_the_fences_a_push_on_either_stripe_is_lost() {
    let said = must_fail(
        "loom_pool_without_the_fences_a_push_on_either_stripe_is_lost",
        push_on_either_stripe_against_park::<NoFence>,
    );
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_pool_a_push_that_meets_the_closing_is_run_or_cancelled() {
    bounded(more_if_long(2)).check(|| {
        let pools = PoolModel::<FullFence>::new(1, 1);
        let count = Arc::new(AtomicUsize::new(0));
        let worker = pools.enlist(0);
        let thread = thread::spawn(move || worker.work_until(|| false));
        let before = counting(&count);
        pools.push(0, &before);
        let pusher = {
            let (pools, work) = (pools.clone(), counting(&count));
            thread::spawn(move || {
                pools.push(0, &work);
                work
            })
        };
        pools.close();
        thread.join().unwrap();
        let with = pusher.join().unwrap();
        assert!(!before.is_pending() && !with.is_pending(), "nothing is left in a list");
        assert!(count.load(Ordering::Relaxed) >= 1, "what came before is run");
        assert!(pools.is_deserted(0));
    });
}

/// Checks two workers with one core. The first item waits for the second, inside a blocking region:
/// the other worker has to be woken, by the push or by the region.
fn blocking_against_push<F: FencePolicy>() {
    bounded(more_if_long(1)).check(|| {
        let pools = PoolModel::<F>::new(1, 1);
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let first = Work::new(move || waits.wait());
        let second = Work::new(move || rings.complete());
        let threads = [(); 2].map(|()| {
            let worker = pools.enlist(0);
            thread::spawn(move || worker.work_and_tell())
        });
        pools.push(0, &first);
        pools.push(0, &second);
        second_ran.wait();
        pools.close();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(pools.is_deserted(0));
    });
}

#[test]
fn loom_pool_a_blocking_region_lets_the_next_worker_in() {
    blocking_against_push::<FullFence>();
}

#[test]
fn loom_pool_without_the_fences_a_blocking_region_leaves_work_behind() {
    let said = must_fail(
        "loom_pool_without_the_fences_a_blocking_region_leaves_work_behind",
        blocking_against_push::<NoFence>,
    );
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

/// Checks two items in an overflow, of which the first ends only when the second has run. Of two
/// workers, one takes the first, while the other is about to park.
#[test]
fn loom_pool_items_in_an_overflow_run_while_the_first_waits() {
    bounded(2).check(|| {
        let model = PoolModel::<FullFence>::spilling(1, 2);
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let [one, other] = [model.enlist(0), model.enlist(0)];
        let over = Arc::clone(&second_ran);
        let thread = thread::spawn(move || one.work_until(|| over.is_complete()));
        model.push(0, &Work::new(move || waits.wait()));
        model.push(0, &Work::new(move || rings.complete()));
        other.work_until(|| second_ran.is_complete());
        // It is woken by this, if it is still parked.
        model.push(0, &Work::new(|| ()));
        thread.join().unwrap();
    });
}

/// Checks one push on a pod whose only worker is busy for good: the other pod's worker, going to
/// sleep or asleep, has to take it over.
fn push_against_another_pods_park<F: FencePolicy>() {
    bounded(3).check(|| {
        let pools = PoolModel::<F>::new(2, 1);
        let _busy = pools.enlist(0);
        pushes_meet(&pools, pools.enlist(1), 1);
    });
}

#[test]
fn loom_pool_a_push_on_a_saturated_pod_is_not_left_to_another_that_sleeps() {
    push_against_another_pods_park::<FullFence>();
}

#[test]
fn loom_pool_without_the_fences_another_pod_sleeps_through_it() {
    let said = must_fail(
        "loom_pool_without_the_fences_another_pod_sleeps_through_it",
        push_against_another_pods_park::<NoFence>,
    );
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}
