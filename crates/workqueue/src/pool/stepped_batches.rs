//! Batches that are left before their end, and workers that what waits is left to.

use std::panic::Location;
use std::sync::Arc;

use corewise_sync::fence::FullFence;
use corewise_topology::{CpuSet, current_cpu, pin_current_thread};

use super::group::{Group, Step};
use super::stepped::{Log, group, park, push, push_on};
use super::stepped_dying::die;
use super::worker::Worker;
use crate::pool::exemption::Exemption;
use crate::task::running::Label;

/// Returns two workers, of which the first has run the first item of a batch of `many`.
fn in_a_batch(many: u32) -> (Arc<Group<FullFence>>, Log, [Arc<Worker>; 2]) {
    let (group, log) = (group(1, 2), Log::default());
    let workers = [group.enlist(0), group.enlist(0)];
    park(&group, &workers[1]);
    workers[0].takes_at_once(u64::from(many));
    // Two share them.
    for n in 0..2 * many {
        push(&group, 0, &log, n);
    }
    assert!(workers[1].take_wake());
    assert_eq!(group.step(&workers[0]), Step::Again);
    assert_eq!(*log.lock(), [0]);
    (group, log, workers)
}

/// Makes the worker show an item to others.
fn shows_an_item(worker: &Worker) {
    let name = std::any::type_name::<u8>;
    worker.shown.starts(Label { name, site: Location::caller(), queue: 0 });
}

/// Checks that the second worker runs all that is left, and nothing twice.
fn the_other_runs_the_rest(
    group: &Arc<Group<FullFence>>,
    log: &Log,
    other: &Arc<Worker>,
    many: u32,
) {
    for _ in 1..many {
        assert_eq!(group.step(other), Step::Again);
    }
    park(group, other);
    let mut ran = log.lock().clone();
    ran.sort_unstable();
    assert_eq!(ran, (0..many).collect::<Vec<_>>());
}

#[test]
fn stepped_reserved_items_are_run_by_another_once_their_worker_blocks() {
    let (group, log, [takes, other]) = in_a_batch(4);
    group.begin_blocking(&takes);
    the_other_runs_the_rest(&group, &log, &other, 8);
}

#[test]
fn stepped_reserved_items_are_run_by_another_once_their_worker_is_exempt() {
    let (group, log, [takes, other]) = in_a_batch(4);
    shows_an_item(&takes);
    let instance = takes.shown.read().expect("it runs").instance;
    assert!(group.exempt(&takes, instance, Exemption::Asleep));
    the_other_runs_the_rest(&group, &log, &other, 8);
    assert!(!group.works(&takes), "nothing is left");
}

#[test]
fn stepped_reserved_items_are_run_by_another_once_their_worker_dies() {
    let (group, log, [takes, other]) = in_a_batch(4);
    // Else the pool would make a thread in its place.
    let spare = group.enlist(0);
    park(&group, &spare);
    die(&group, &takes);
    the_other_runs_the_rest(&group, &log, &other, 8);
}

#[test]
fn stepped_reserved_items_are_run_by_another_once_their_worker_is_one_too_many() {
    let (group, log, [takes, other]) = in_a_batch(4);
    // One that blocked comes back: three hold a core, though there are two.
    let back = group.enlist(0);
    assert!(matches!(group.step(&takes), Step::Park { .. }));
    drop(back);
    the_other_runs_the_rest(&group, &log, &other, 8);
}

/// Returns after how many items the last of eight has run. A worker takes the first of eight of a
/// list and loses its CPU. The other one stays where it is, and there is always more for it in
/// these lists.
fn passed_by(lists: &[u32], of: u32) -> usize {
    let (group, log) = (group(1, 2), Log::default());
    let [takes, other] = [group.enlist(0), group.enlist(0)];
    takes.takes_at_once(8);
    other.takes_at_once(8);
    for n in 0..16 {
        push_on(&group, 0, of, &log, n);
    }
    assert_eq!(group.step(&takes), Step::Again);
    assert_eq!(*log.lock(), [0]);
    for _ in 0..1000 {
        for list in lists {
            push_on(&group, 0, *list, &log, 1000);
        }
        assert_eq!(group.step(&other), Step::Again);
    }
    let log = log.lock();
    let ran = |n| log.iter().position(|ran| *ran == n).expect("it ran");
    (1..8).map(ran).max().expect("seven")
}

#[test]
fn stepped_reserved_items_of_a_worker_without_cpu_are_passed_by_four_turns_a_list_at_most() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let cpu = current_cpu().expect("tests run on some CPU");
    pin_current_thread(&CpuSet::from_iter([cpu])).unwrap();
    let own = group(1, 2).pools[0].list_of(cpu);
    let other = 1 - own;
    for (lists, of) in
        [(vec![own], own), (vec![other], other), (vec![own, other], own), (vec![own, other], other)]
    {
        // A batch more, since a turn ends with one.
        let passed = passed_by(&lists, of);
        assert!(
            passed <= 2 * 4 * (64 + 32),
            "{passed}, where {lists:?} are served, and it is of {of}"
        );
    }
}

#[test]
fn stepped_reserved_items_of_a_saturated_pod_are_run_by_a_helper_that_goes_idle() {
    let (group, log) = (group(2, 2), Log::default());
    let [takes, _busy] = [group.enlist(0), group.enlist(0)];
    let [helper, idle] = [group.enlist(1), group.enlist(1)];
    park(&group, &idle);
    takes.takes_at_once(4);
    for n in 0..8 {
        push(&group, 0, &log, n);
    }
    assert_eq!(group.step(&takes), Step::Again);
    the_other_runs_the_rest(&group, &log, &helper, 8);
}

/// Returns a worker that takes a stream alone and keeps up, and an idle one, after an item has
/// come.
fn left_to_a_taker() -> (Arc<Group<FullFence>>, Log, [Arc<Worker>; 2]) {
    let (group, log) = (group(1, 2), Log::default());
    let [takes, idle] = [group.enlist(0), group.enlist(0)];
    park(&group, &idle);
    group.takes_a_stream(&takes);
    push(&group, 0, &log, 0);
    assert!(!idle.take_wake(), "it is left to the one that takes");
    (group, log, [takes, idle])
}

#[test]
fn stepped_waiting_items_are_left_to_the_takers_until_one_runs_a_long_item() {
    let (group, log, [takes, idle]) = left_to_a_taker();
    assert!(group.is_stuck(0), "the timekeeper looks after it");
    shows_an_item(&takes);
    assert!(group.look(0).is_some() && !idle.take_wake(), "it may have begun just now");
    assert!(group.look(0).is_none() && idle.take_wake(), "it is at the same item still");
    assert_eq!(group.step(&idle), Step::Again);
    assert_eq!(*log.lock(), [0]);
}

#[test]
fn stepped_items_left_to_an_empty_handed_taker_are_run_if_it_blocks_in_the_next_item() {
    let (group, log, [takes, idle]) = left_to_a_taker();
    // It has looked before that came, and is no taker from now on.
    assert_eq!(group.go_idle(&takes), Step::Again);
    push(&group, 0, &log, 1);
    assert!(idle.take_wake(), "the push sees that nobody takes a stream");
    assert_eq!(group.step(&takes), Step::Again);
    assert_eq!(group.step(&idle), Step::Again);
    assert_eq!(log.lock().len(), 2);
}

#[test]
fn stepped_a_taker_that_blocks_leaves_waiting_items_to_another() {
    let (group, log, [takes, idle]) = left_to_a_taker();
    group.begin_blocking(&takes);
    assert!(idle.take_wake());
    assert_eq!(group.step(&idle), Step::Again);
    assert_eq!(*log.lock(), [0]);
}

#[test]
fn stepped_waiting_items_are_left_to_the_takers_until_one_is_exempt() {
    for why in [Exemption::Asleep, Exemption::Intensive] {
        let (group, log, [takes, idle]) = left_to_a_taker();
        shows_an_item(&takes);
        let instance = takes.shown.read().expect("it runs").instance;
        assert!(group.exempt(&takes, instance, why));
        assert!(idle.take_wake(), "{why:?}");
        assert_eq!(group.step(&idle), Step::Again);
        assert_eq!(*log.lock(), [0]);
    }
}

#[test]
fn stepped_waiting_items_are_left_to_the_takers_until_one_is_long_between_two_items() {
    let (group, _log, [_takes, idle]) = left_to_a_taker();
    // It shows none.
    assert!(group.look(0).is_some() && !idle.take_wake(), "it may be about to begin one");
    assert!(group.look(0).is_none() && idle.take_wake(), "it has run nothing since");
}

#[test]
fn stepped_a_worker_that_goes_idle_is_called_where_the_one_that_searches_is_kept_from_its_cpu() {
    let (group, log) = (group(1, 2), Log::default());
    let [late, works] = [group.enlist(0), group.enlist(0)];
    park(&group, &late);
    // It is named, and doesn't come; the other one is busy until more have come than are counted.
    for n in 0..20 {
        push(&group, 0, &log, n);
    }
    while group.step(&works) == Step::Again {}
    assert_eq!(log.lock().len(), 20);
    push(&group, 0, &log, 20);
    push(&group, 0, &log, 21);
    push(&group, 0, &log, 22);
    assert!(works.take_wake());
    assert_eq!(group.step(&works), Step::Again);
}

#[test]
fn stepped_nothing_else_waits_for_an_append_whose_thread_has_lost_its_cpu() {
    for (busy, list) in [(0, 0), (1, 0), (0, 1)] {
        let (group, log) = (group(1, 2), Log::default());
        let worker = group.enlist(0);
        let pool = &group.pools[0];
        let begun = pool.lists.at(busy).ring.begin();
        for n in 0..3 {
            push_on(&group, 0, list, &log, n);
        }
        while log.lock().len() < 3 {
            assert_eq!(group.step(&worker), Step::Again);
        }
        // There is nothing else: it looks again and again.
        assert_eq!(group.step(&worker), Step::Again);
        drop(begun);
        park(&group, &worker);
    }
}
