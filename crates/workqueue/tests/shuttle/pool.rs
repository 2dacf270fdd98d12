//! Pools with three threads, in random schedules: 4 000 a scenario, or 200 000 with
//! `COREWISE_LONG`. The steps of two threads, and what the fences are for, are in
//! `tests/loom/pool.rs`.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::fence::FullFence;
use corewise_sync::model::schedules::{self, Schedules};
use corewise_sync::thread;
use corewise_workqueue::Work;
use corewise_workqueue::model::{ModelWorker, PoolModel};

const MANY: Schedules = Schedules { short: 4_000, long: 200_000 };

/// Checks two items on pool 0, queued from these CPUs. The first ends only when the second has run,
/// which the workers of the given pools have to ensure. Passes if both run and everybody can leave.
fn the_second_is_run_while_the_first_waits(
    new: fn() -> PoolModel<FullFence>,
    from: [u32; 2],
    workers: [usize; 2],
    work_until: fn(&ModelWorker<FullFence>, &Completion),
) {
    schedules::few_preemptions(MANY, move || {
        let model = new();
        let second_ran = Arc::new(Completion::new());
        let (waits, rings) = (Arc::clone(&second_ran), Arc::clone(&second_ran));
        let first = Work::new(move || waits.wait());
        let second = Work::new(move || rings.complete());
        let threads = workers.map(|pool| {
            let worker = model.enlist(pool);
            let over = Arc::clone(&second_ran);
            thread::spawn(move || work_until(&worker, &over))
        });
        model.push_from(from[0], 0, &first);
        model.push_from(from[1], 0, &second);
        second_ran.wait();
        // A worker that is still parked is woken by these, and leaves.
        for pool in workers {
            model.push(pool, &Work::new(|| ()));
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// Sleeps at once if it finds nothing.
fn sleeps(worker: &ModelWorker<FullFence>, over: &Completion) {
    worker.work_until(|| over.is_complete());
}

/// Searches before it sleeps.
fn searches(worker: &ModelWorker<FullFence>, over: &Completion) {
    worker.search_until(|| over.is_complete());
}

#[test]
fn shuttle_pool_a_search_that_found_something_wakes_the_next_worker() {
    the_second_is_run_while_the_first_waits(|| PoolModel::new(1, 2), [0, 0], [0, 0], searches);
}

#[test]
fn shuttle_pool_a_search_that_ends_looks_at_saturated_pods() {
    the_second_is_run_while_the_first_waits(|| PoolModel::new(2, 1), [0, 0], [0, 1], searches);
}

/// Checks the same if the second push finds the searcher overdue, and names the other worker. Two
/// workers search then, and either may be late, but the second item is left to neither.
#[test]
fn shuttle_pool_the_searcher_or_a_push_that_finds_it_overdue_wakes_the_next_one() {
    the_second_is_run_while_the_first_waits(|| PoolModel::new(1, 2), [0, 0], [0, 0], sleeps);
}

#[test]
fn shuttle_pool_the_searcher_wakes_the_next_one_for_another_list() {
    the_second_is_run_while_the_first_waits(|| PoolModel::new(1, 2), [0, 1], [0, 0], sleeps);
}

#[test]
fn shuttle_pool_items_in_an_overflow_run_while_the_first_waits() {
    the_second_is_run_while_the_first_waits(|| PoolModel::spilling(1, 2), [0, 0], [0, 0], sleeps);
}

#[test]
fn shuttle_pool_work_of_a_saturated_pod_is_taken_over() {
    // Pod 0 has one worker, which waits inside the first item: pod 1 has to help.
    the_second_is_run_while_the_first_waits(|| PoolModel::new(2, 1), [0, 0], [0, 1], sleeps);
}
