//! The sleep protocol of a pool, the very code that runs: no push is left to nobody.
//!
//! A lost wake-up shows as a deadlock, which loom reports. Without the full fences it must.
#![cfg(loom)]

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::{Work, model::PoolModel};

#[path = "support/bounded.rs"]
mod bounded;

use bounded::bounded;

fn counting(count: &Arc<AtomicUsize>) -> Work {
    let count = Arc::clone(count);
    Work::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    })
}

/// One worker; two pushes, each of which may meet it awake, going to sleep, or asleep.
fn push_against_park<F: FencePolicy>() {
    bounded(3).check(|| {
        let pools = PoolModel::<F>::new(1, 1);
        let count = Arc::new(AtomicUsize::new(0));
        let worker = pools.enlist(0);
        let done = Arc::clone(&count);
        let thread = thread::spawn(move || worker.work_until(|| done.load(Ordering::Relaxed) == 2));
        for _ in 0..2 {
            assert!(pools.push(0, &counting(&count)));
        }
        thread.join().unwrap();
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

/// One worker, which searches before it sleeps; two pushes, which leave it alone meanwhile.
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
fn loom_pool_who_sleeps_as_the_searcher_is_not_woken() {
    let said = must_fail("loom_pool_who_sleeps_as_the_searcher_is_not_woken", || {
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

/// Two workers that search before they sleep, of one pool or of two; the first item waits for the
/// second.
fn search_while_the_first_waits(new: fn() -> PoolModel<FullFence>, pools: [usize; 2]) {
    bounded(bounded::once_or_twice()).check(move || {
        let model = new();
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let first = Work::new(move || waits.wait());
        let second = Work::new(move || rings.complete());
        let threads = pools.map(|pool| {
            let worker = model.enlist(pool);
            let over = Arc::clone(&second_ran);
            thread::spawn(move || worker.search_until(|| over.is_complete()))
        });
        model.push(0, &first);
        model.push(0, &second);
        second_ran.wait();
        for pool in pools {
            model.push(pool, &Work::new(|| ()));
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn loom_pool_a_search_that_found_something_wakes_the_next_worker() {
    search_while_the_first_waits(|| PoolModel::new(1, 2), [0, 0]);
}

#[test]
fn loom_pool_a_search_that_ends_looks_at_saturated_pods() {
    search_while_the_first_waits(|| PoolModel::new(2, 1), [0, 1]);
}

#[test]
fn loom_pool_no_push_is_left_to_a_sleeping_worker() {
    push_against_park::<FullFence>();
}

#[test]
fn loom_pool_without_the_fences_a_push_is_lost() {
    let said =
        must_fail("loom_pool_without_the_fences_a_push_is_lost", push_against_park::<NoFence>);
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

/// A worker of a pool with two stripes, one CPU of which can be used. Two pushes from different CPUs at
/// once: it has to see both before it parks.
fn push_on_either_stripe_against_park<F: FencePolicy>() {
    bounded(2).check(|| {
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
    bounded(3).check(|| {
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

/// One core, two workers. The first item waits for the second, inside a blocking region: the other
/// worker has to be woken, by the push or by the region.
fn blocking_against_push<F: FencePolicy>() {
    bounded(2).check(|| {
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

/// Two cores, three workers. Whoever runs the first item waits in it for the second, and wakes a worker
/// for that although a searcher may be on its way: two search then. What is pushed meanwhile, which ends
/// it all, is left to neither.
#[test]
fn loom_pool_who_blocks_hands_on_what_a_searcher_is_coming_for() {
    bounded(2).check(|| {
        let pools = PoolModel::<FullFence>::new(1, 2);
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let closes = pools.clone();
        let last = Work::new(move || closes.close());
        let pushes = pools.clone();
        let first = Work::new(move || {
            waits.wait();
            pushes.push(0, &last);
        });
        let second = Work::new(move || rings.complete());
        let me = pools.enlist(0);
        let threads = [(); 2].map(|()| {
            let worker = pools.enlist(0);
            thread::spawn(move || worker.work_and_tell())
        });
        pools.push(0, &first);
        pools.push(0, &second);
        me.work_and_tell();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(pools.is_deserted(0));
    });
}

#[test]
fn loom_pool_a_worker_whose_time_runs_out_takes_no_wake_up_along() {
    bounded(2).check(|| {
        let pools = PoolModel::<FullFence>::new(1, 1);
        let count = Arc::new(AtomicUsize::new(0));
        let threads = [(); 2].map(|()| {
            let worker = pools.enlist(0);
            thread::spawn(move || worker.work_impatiently())
        });
        for _ in 0..2 {
            assert!(pools.push(0, &counting(&count)));
        }
        while count.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        pools.close();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(pools.is_deserted(0));
    });
}

/// Two items on pool 0, of which the first ends only when the second has run; the workers of the
/// pools given have to see to it. Passes where both run and everybody can leave.
fn the_second_is_run_while_the_first_waits<F: FencePolicy>(
    new: fn() -> PoolModel<F>,
    from: [u32; 2],
    workers: [usize; 2],
    preemptions: usize,
) {
    bounded(preemptions).check(move || {
        let model = new();
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let first = Work::new(move || waits.wait());
        let second = Work::new(move || rings.complete());
        let threads = workers.map(|pool| {
            let worker = model.enlist(pool);
            let over = Arc::clone(&second_ran);
            thread::spawn(move || worker.work_until(|| over.is_complete()))
        });
        model.push_from(from[0], 0, &first);
        model.push_from(from[1], 0, &second);
        second_ran.wait();
        // Whoever is still parked is woken by these, and leaves.
        for pool in workers {
            model.push(pool, &Work::new(|| ()));
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// Also where the second push finds the searcher overdue, and names the other worker: two search then, either of which
/// may be late, and the second item is left to neither.
#[test]
fn loom_pool_the_searcher_or_a_push_that_finds_it_overdue_wakes_the_next_one() {
    the_second_is_run_while_the_first_waits::<FullFence>(
        || PoolModel::new(1, 2),
        [0, 0],
        [0, 0],
        bounded::once_or_twice(),
    );
}

#[test]
fn loom_pool_the_searcher_wakes_the_next_one_for_another_stripe() {
    the_second_is_run_while_the_first_waits::<FullFence>(
        || PoolModel::new(1, 2),
        [0, 1],
        [0, 0],
        1,
    );
}

/// One worker empties the inbox while the other is about to park: where the list says too late that it
/// has something, that one parks, and the first waits inside its item.
#[test]
fn loom_pool_who_says_too_late_what_it_drained_leaves_work_behind() {
    let said = must_fail("loom_pool_who_says_too_late_what_it_drained_leaves_work_behind", || {
        let late = || PoolModel::draining_late(1, 2);
        the_second_is_run_while_the_first_waits::<FullFence>(late, [0, 0], [0, 0], 2);
    });
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_pool_work_of_a_saturated_pod_is_taken_over() {
    // Pod 0 has one worker, which waits inside the first item: pod 1 has to help.
    the_second_is_run_while_the_first_waits::<FullFence>(
        || PoolModel::new(2, 1),
        [0, 0],
        [0, 1],
        bounded::once_or_twice(),
    );
}

/// One push on a pod whose only worker is busy for good: the other pod's worker, going to sleep or
/// asleep, has to take it over.
fn push_against_another_pods_park<F: FencePolicy>() {
    bounded(3).check(|| {
        let pools = PoolModel::<F>::new(2, 1);
        let _busy = pools.enlist(0);
        let count = Arc::new(AtomicUsize::new(0));
        let worker = pools.enlist(1);
        let done = Arc::clone(&count);
        let thread = thread::spawn(move || worker.work_until(|| done.load(Ordering::Relaxed) == 1));
        assert!(pools.push(0, &counting(&count)));
        thread.join().unwrap();
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
