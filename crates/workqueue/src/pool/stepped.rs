//! The pool's transitions, stepped by hand on one thread in a chosen order.

use std::panic::Location;
use std::sync::Arc;

use corewise_sync::fence::FullFence;
use corewise_sync::{Mutex, time};
use corewise_topology::{AffinityScope, CpuSet, current_cpu, pin_current_thread};

use super::PoolSpec;
use super::group::{Group, Setup, Step};
use super::worker::Worker;
use crate::handle::work::Work;
use crate::pool::policy;
use crate::task::header::{Job, Queued};
use crate::task::ticket::MaybeTicket;

pub(super) type Log = Arc<Mutex<Vec<u32>>>;

/// Returns soft pools that make no threads of their own.
pub(super) fn group(pools: usize, cpus: u32) -> Arc<Group<FullFence>> {
    let specs = PoolSpec::by_hand(pools, cpus);
    Arc::new(Group::new(Setup::by_hand(AffinityScope::Cpu), specs))
}

pub(super) fn push(group: &Arc<Group<FullFence>>, pool: usize, log: &Log, n: u32) {
    push_on(group, pool, 0, log, n);
}

pub(super) fn push_on(group: &Arc<Group<FullFence>>, pool: usize, list: u32, log: &Log, n: u32) {
    let log = Arc::clone(log);
    let work = Work::new(move || log.lock().push(n));
    assert!(work.header().state.pend().is_ok());
    let item = work.hold();
    // SAFETY: `pend` succeeded just now.
    let queued =
        unsafe { Queued::new(item, Job { ticket: MaybeTicket::none(), site: Location::caller() }) };
    group.push(pool, list, queued);
}

pub(super) fn park(group: &Arc<Group<FullFence>>, worker: &Arc<Worker>) {
    assert!(matches!(group.step(worker), Step::Park { .. }));
}

#[test]
fn stepped_items_of_a_pod_start_in_the_order_they_were_queued() {
    let (group, log) = (group(1, 1), Log::default());
    let worker = group.enlist(0);
    for n in 0..5 {
        push(&group, 0, &log, n);
    }
    for _ in 0..5 {
        assert_eq!(group.step(&worker), Step::Again);
    }
    park(&group, &worker);
    assert_eq!(*log.lock(), [0, 1, 2, 3, 4]);
}

#[test]
fn stepped_a_push_leaves_the_one_that_searches_alone_and_no_other_searches() {
    let (group, log) = (group(1, 2), Log::default());
    let workers: Vec<_> = (0..2).map(|_| group.enlist(0)).collect();
    park(&group, &workers[0]);
    assert!(!group.works(&workers[1]) && group.begin_search(&workers[1]));
    push(&group, 0, &log, 0);
    assert!(workers.iter().all(|worker| !worker.take_wake()));
    assert!(group.works(&workers[1]), "it takes what was pushed");
    assert!(group.begin_search(&workers[1]) && group.begin_search(&workers[1]), "still it");
    push(&group, 0, &log, 1);
    assert!(!workers[0].take_wake());
    push(&group, 0, &log, 2);
    assert!(workers[0].take_wake(), "the searcher is overdue");
    assert!(group.works(&workers[1]) && group.works(&workers[0]));
    park(&group, &workers[0]);
    assert!(group.begin_search(&workers[1]));
    park(&group, &workers[1]);
    push(&group, 0, &log, 3);
    assert!(workers[1].take_wake(), "a search has ended");
    assert_eq!(log.lock().len(), 3);
}

#[test]
fn stepped_a_searcher_is_called_where_the_pool_closes_or_another_pod_is_saturated() {
    let (group, log) = (group(2, 1), Log::default());
    let (_busy, searcher) = (group.enlist(0), group.enlist(1));
    assert!(group.begin_search(&searcher) && !group.calls_searcher(1));
    push(&group, 0, &log, 0);
    assert!(group.calls_searcher(1) && group.works(&searcher));
    assert!(group.begin_search(&searcher));
    group.close();
    assert!(group.calls_searcher(1) && !group.begin_search(&searcher));
    assert_eq!(group.step(&searcher), Step::Exit);
}

#[test]
fn stepped_items_left_alone_on_another_cpu_are_taken_although_the_own_list_is_full() {
    let (group, log) = (group(1, 2), Log::default());
    let [worker, _busy] = [group.enlist(0), group.enlist(0)];
    for n in 0..600 {
        push_on(&group, 0, n % 2, &log, n % 2);
    }
    // It may be on any CPU.
    for _ in 0..200 {
        assert_eq!(group.step(&worker), Step::Again);
    }
    let log = log.lock();
    let of = |stripe| log.iter().filter(|n| **n == stripe).count();
    assert!(of(0) > 0 && of(1) > 0, "{} and {}", of(0), of(1));
}

#[test]
fn stepped_a_stripe_has_its_turn_soon_where_the_items_of_another_one_are_long() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let (group, log) = (group(1, 2), Log::default());
    let [worker, _busy] = [group.enlist(0), group.enlist(0)];
    for n in 0..400 {
        push_on(&group, 0, n % 2, &log, n % 2);
    }
    // It stays on its CPU, whichever that is.
    if let Some(cpu) = current_cpu() {
        pin_current_thread(&CpuSet::from_iter([cpu])).unwrap();
    }
    for _ in 0..100 {
        assert_eq!(group.step(&worker), Step::Again);
        // As if the item had been so long.
        let began = time::now();
        while time::now().duration_since(began) < policy::TURN {
            std::hint::spin_loop();
        }
    }
    let log = log.lock();
    let of = |stripe| log.iter().filter(|n| **n == stripe).count();
    assert!(of(0) > 10 && of(1) > 10, "{} and {}", of(0), of(1));
}

#[test]
fn stepped_a_push_wakes_another_worker_where_what_is_left_to_the_searcher_has_doubled() {
    let (group, log) = (group(1, 5), Log::default());
    let workers: Vec<_> = (0..5).map(|_| group.enlist(0)).collect();
    for worker in &workers {
        park(&group, worker);
    }
    let woken = |n| {
        push(&group, 0, &log, n);
        workers.iter().filter(|worker| worker.take_wake()).count()
    };
    let woken: Vec<_> = (1..=8).map(woken).collect();
    assert_eq!(woken, [1, 1, 0, 1, 0, 0, 0, 1]);
    // The first that comes wakes the last one that is left, and pushes count anew for that.
    assert_eq!(group.step(&workers[4]), Step::Again);
    assert_eq!(workers.iter().filter(|worker| worker.take_wake()).count(), 1);
    for n in 9..20 {
        push(&group, 0, &log, n);
    }
    assert!(workers.iter().all(|worker| !worker.take_wake()), "nobody is idle");
    for n in 0..18 {
        assert_eq!(group.step(&workers[n % 5]), Step::Again);
    }
    assert_eq!(log.lock().len(), 19);
}

#[test]
fn stepped_a_worker_that_was_woken_wakes_the_next_where_there_is_more() {
    let (group, log) = (group(1, 3), Log::default());
    let workers: Vec<_> = (0..3).map(|_| group.enlist(0)).collect();
    for worker in &workers {
        park(&group, worker);
    }
    push(&group, 0, &log, 0);
    push(&group, 0, &log, 1);
    push(&group, 0, &log, 2);
    let awake: Vec<_> = workers.iter().map(|w| w.take_wake()).collect();
    assert_eq!(
        awake,
        [false, true, true],
        "a searcher, the one that parked last, and the next at the second push"
    );
    assert_eq!(group.step(&workers[2]), Step::Again);
    assert!(workers[0].take_wake(), "there was more, so it woke the next");
    assert_eq!(group.step(&workers[1]), Step::Again);
    assert_eq!(group.step(&workers[0]), Step::Again);
    assert_eq!(*log.lock(), [0, 1, 2]);
}

#[test]
fn stepped_a_push_to_a_pod_whose_cores_are_taken_wakes_another_pod() {
    let (group, log) = (group(2, 1), Log::default());
    let (home, other) = (group.enlist(0), group.enlist(1));
    park(&group, &other);
    push(&group, 0, &log, 7);
    assert!(other.take_wake(), "pod 0's only worker is active, pod 1's is idle");
    assert_eq!(group.step(&other), Step::Again);
    assert_eq!(*log.lock(), [7]);
    park(&group, &home);
    push(&group, 0, &log, 8);
    assert!(home.take_wake() && !other.take_wake(), "with room at home nobody else is asked");
}

#[test]
fn stepped_a_worker_that_goes_idle_looks_after_saturated_pods_first() {
    let (group, log) = (group(2, 1), Log::default());
    let (_busy, other) = (group.enlist(0), group.enlist(1));
    // Both active: the push finds nobody to wake.
    push(&group, 0, &log, 1);
    assert_eq!(group.step(&other), Step::Again);
    assert_eq!(*log.lock(), [1]);
}

#[test]
fn stepped_a_helping_pod_brings_in_as_many_workers_as_there_is_work_for() {
    let (group, log) = (group(2, 2), Log::default());
    let _busy = [group.enlist(0), group.enlist(0)];
    let helpers = [group.enlist(1), group.enlist(1)];
    for worker in &helpers {
        park(&group, worker);
    }
    // The second push meets a pod 1 that is searching already, and leaves it alone.
    push(&group, 0, &log, 1);
    push(&group, 0, &log, 2);
    assert!(helpers[1].take_wake() && !helpers[0].take_wake());
    assert_eq!(group.step(&helpers[1]), Step::Again);
    assert!(helpers[0].take_wake(), "pod 0 has more, and pod 1 has a core left");
    assert_eq!(group.step(&helpers[0]), Step::Again);
    assert_eq!(*log.lock(), [1, 2]);
}

#[test]
fn stepped_a_search_that_ends_at_home_leaves_no_other_pod_waiting() {
    let (group, log) = (group(2, 2), Log::default());
    let _busy = [group.enlist(0), group.enlist(0)];
    let helpers = [group.enlist(1), group.enlist(1)];
    for worker in &helpers {
        park(&group, worker);
    }
    push(&group, 1, &log, 1);
    push(&group, 0, &log, 2);
    assert!(helpers[1].take_wake() && !helpers[0].take_wake());
    assert_eq!(group.step(&helpers[1]), Step::Again);
    assert_eq!(*log.lock(), [1], "its own pod's work first");
    assert!(helpers[0].take_wake(), "pod 0's push was left to the search: it has to be looked for");
    assert_eq!(group.step(&helpers[0]), Step::Again);
    assert_eq!(*log.lock(), [1, 2]);
}

#[test]
fn stepped_a_core_that_a_blocking_region_frees_helps_a_saturated_pod() {
    let (group, log) = (group(2, 1), Log::default());
    let _busy = group.enlist(0);
    let (idle, blocks) = (group.enlist(1), group.enlist(1));
    park(&group, &idle);
    // Pod 1's core is taken as well: nobody to wake.
    push(&group, 0, &log, 1);
    assert!(!idle.take_wake());
    group.begin_blocking(&blocks);
    assert!(idle.take_wake(), "pod 1 has a free core and an idle worker, pod 0 has work");
    assert_eq!(group.step(&idle), Step::Again);
    assert_eq!(*log.lock(), [1]);
}

#[test]
fn stepped_a_long_part_of_an_item_holds_no_core_and_a_block_inside_it_changes_nothing() {
    let (group, log) = (group(1, 1), Log::default());
    let (long, other) = (group.enlist(0), group.enlist(0));
    park(&group, &other);
    group.begin_long(&long);
    push(&group, 0, &log, 1);
    assert!(other.take_wake(), "the core counts as free");
    assert_eq!(group.step(&other), Step::Again);
    group.begin_blocking(&long);
    group.end_blocking(&long);
    push(&group, 0, &log, 2);
    assert_eq!(group.step(&other), Step::Again, "it still holds no core");
    group.end_long(&long);
    push(&group, 0, &log, 3);
    assert!(matches!(group.step(&long), Step::Park { .. }), "its place is taken");
    assert_eq!(group.step(&other), Step::Again);
    assert_eq!(*log.lock(), [1, 2, 3]);
}

#[test]
fn stepped_a_returning_worker_is_one_too_many_and_goes_idle() {
    let (group, log) = (group(1, 1), Log::default());
    let (first, second) = (group.enlist(0), group.enlist(0));
    // The first is inside a blocking region, the second took its place.
    group.begin_blocking(&first);
    push(&group, 0, &log, 1);
    assert_eq!(group.step(&second), Step::Again);
    group.end_blocking(&first);
    push(&group, 0, &log, 2);
    assert!(matches!(group.step(&first), Step::Park { .. }), "its place is taken");
    assert_eq!(*log.lock(), [1]);
    assert_eq!(group.step(&second), Step::Again);
    assert_eq!(*log.lock(), [1, 2]);
}

#[test]
fn stepped_a_surplus_worker_leaves_after_its_idle_time_and_the_last_idle_one_stays() {
    let group = group(1, 1);
    let workers: Vec<_> = (0..3).map(|_| group.enlist(0)).collect();
    for worker in &workers {
        park(&group, worker);
    }
    assert_eq!(group.idle_timed_out(&workers[0]), Step::Exit);
    assert_eq!(group.idle_timed_out(&workers[1]), Step::Exit);
    assert!(matches!(group.idle_timed_out(&workers[2]), Step::Park { .. }));
    assert_eq!(group.pools[0].sizes().0, 1);
}

#[test]
fn stepped_the_idle_list_is_last_in_first_out_so_that_the_rest_can_be_culled() {
    let (group, log) = (group(1, 1), Log::default());
    let workers: Vec<_> = (0..3).map(|_| group.enlist(0)).collect();
    for worker in &workers {
        park(&group, worker);
    }
    for n in 0..4 {
        push(&group, 0, &log, n);
        assert!(workers[2].take_wake(), "the one that parked last, each time");
        assert_eq!(group.step(&workers[2]), Step::Again);
        park(&group, &workers[2]);
    }
    assert_eq!(group.idle_timed_out(&workers[0]), Step::Exit, "it was idle all the time");
    assert!(!workers[1].take_wake());
}

#[test]
fn stepped_a_worker_woken_as_its_time_runs_out_stays() {
    let (group, log) = (group(1, 1), Log::default());
    let workers: Vec<_> = (0..2).map(|_| group.enlist(0)).collect();
    park(&group, &workers[0]);
    park(&group, &workers[1]);
    push(&group, 0, &log, 1);
    assert!(matches!(group.idle_timed_out(&workers[1]), Step::Park { .. }), "it was woken");
    assert!(workers[1].take_wake());
    assert_eq!(group.step(&workers[1]), Step::Again);
    assert_eq!(*log.lock(), [1]);
}

#[test]
fn stepped_a_closed_pool_runs_what_it_has_and_cancels_what_comes() {
    let (group, log) = (group(1, 1), Log::default());
    let worker = group.enlist(0);
    push(&group, 0, &log, 1);
    group.close();
    push(&group, 0, &log, 2);
    assert_eq!(group.step(&worker), Step::Again);
    assert_eq!(group.step(&worker), Step::Again);
    assert_eq!(group.step(&worker), Step::Exit);
    let held = Arc::strong_count(&log);
    push(&group, 0, &log, 3);
    assert_eq!(*log.lock(), [1, 2]);
    assert_eq!(Arc::strong_count(&log), held, "the refused item was dropped");
}
