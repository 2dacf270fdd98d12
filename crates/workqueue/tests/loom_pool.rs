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

/// Three threads and some dozens of steps: bounded preemptions keep a model under some seconds. The
/// known failures (no fence) show with two.
fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model
}

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
fn loom_pool_no_push_is_left_to_a_sleeping_worker() {
    push_against_park::<FullFence>();
}

#[test]
fn loom_pool_without_the_fences_a_push_is_lost() {
    let said =
        must_fail("loom_pool_without_the_fences_a_push_is_lost", push_against_park::<NoFence>);
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

#[test]
fn loom_pool_the_searcher_wakes_the_next_one() {
    bounded(2).check(|| {
        let pools = PoolModel::<FullFence>::new(1, 2);
        // The first item ends only when the second has run: the second worker has to be woken for
        // it.
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let first = Work::new(move || waits.wait());
        let second = Work::new(move || rings.complete());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let worker = pools.enlist(0);
                let over = Arc::clone(&second_ran);
                thread::spawn(move || worker.work_until(|| over.is_complete()))
            })
            .collect();
        pools.push(0, &first);
        pools.push(0, &second);
        // Whoever is still parked when both have run is woken by these, and leaves.
        second_ran.wait();
        pools.push(0, &Work::new(|| ()));
        pools.push(0, &Work::new(|| ()));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn loom_pool_work_of_a_saturated_pod_is_taken_over() {
    bounded(2).check(|| {
        let pools = PoolModel::<FullFence>::new(2, 1);
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let first = Work::new(move || waits.wait());
        let second = Work::new(move || rings.complete());
        let threads: Vec<_> = (0..2)
            .map(|pool| {
                let worker = pools.enlist(pool);
                let over = Arc::clone(&second_ran);
                thread::spawn(move || worker.work_until(|| over.is_complete()))
            })
            .collect();
        // Both on pod 0, which has one worker: it waits inside the first, so pod 1 has to help.
        pools.push(0, &first);
        pools.push(0, &second);
        second_ran.wait();
        pools.push(0, &Work::new(|| ()));
        pools.push(1, &Work::new(|| ()));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
