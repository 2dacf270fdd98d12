//! Batches that are left before their end, and workers that what waits is left to.

use std::panic::Location;
use std::sync::Arc;

use corewise_sync::fence::FullFence;
use corewise_sync::sys::current_cpu;
use corewise_topology::{CpuSet, pin_current_thread};

use super::excuse::Excuse;
use super::group::{Group, Step};
use super::stepped::{Log, group, park, push, push_on};
use super::stepped_dying::die;
use super::worker::Worker;
use crate::task::publication::Label;

/// Two workers, of which the first has run the first item of a batch of `many`.
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

/// It is at an item, for all that others see.
fn shows_an_item(worker: &Worker) {
    let name = std::any::type_name::<u8>;
    worker.shown.starts(Label { name, site: Location::caller(), queue: 0 });
}

/// The second worker runs all that is left, and nothing twice.
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
fn stepped_what_a_worker_has_reserved_is_run_by_another_once_it_blocks() {
    let (group, log, [takes, other]) = in_a_batch(4);
    group.begin_blocking(&takes);
    the_other_runs_the_rest(&group, &log, &other, 8);
}

#[test]
fn stepped_what_a_worker_has_reserved_is_run_by_another_once_it_is_excused() {
    let (group, log, [takes, other]) = in_a_batch(4);
    shows_an_item(&takes);
    let instance = takes.shown.read().expect("it runs").instance;
    assert!(group.excuse(&takes, instance, Excuse::Asleep));
    the_other_runs_the_rest(&group, &log, &other, 8);
    assert!(!group.works(&takes), "nothing is left");
}

#[test]
fn stepped_what_a_worker_has_reserved_is_run_by_another_once_it_dies() {
    let (group, log, [takes, other]) = in_a_batch(4);
    // Else the pool would make a thread in its place.
    let spare = group.enlist(0);
    park(&group, &spare);
    die(&group, &takes);
    the_other_runs_the_rest(&group, &log, &other, 8);
}

#[test]
fn stepped_what_a_worker_has_reserved_is_run_by_another_once_it_is_one_too_many() {
    let (group, log, [takes, other]) = in_a_batch(4);
    // One that blocked comes back: three hold a core, where there are two.
    let back = group.enlist(0);
    assert!(matches!(group.step(&takes), Step::Park { .. }));
    drop(back);
    the_other_runs_the_rest(&group, &log, &other, 8);
}

/// Its own items are as many as it likes: that of the other one is passed by no more than the promise says.
#[test]
fn stepped_what_a_worker_has_reserved_is_passed_by_two_turns_a_list_at_most_where_it_loses_its_cpu()
{
    let (group, log) = (group(1, 2), Log::default());
    let [takes, other] = [group.enlist(0), group.enlist(0)];
    takes.takes_at_once(8);
    for list in 0..2 {
        for n in 0..16 {
            push_on(&group, 0, list, &log, 100 * list + n);
        }
    }
    // It is on one of the two, takes the first of eight, and loses its CPU.
    assert_eq!(group.step(&takes), Step::Again);
    let first = log.lock()[0];
    let left = first + 1..first + 8;
    // The other one stays where it is, and there is always more for it there.
    let cpu = current_cpu().expect("tests run on some CPU");
    pin_current_thread(&CpuSet::from_iter([cpu])).unwrap();
    for _ in 0..1000 {
        for list in 0..2 {
            push_on(&group, 0, list, &log, 1000);
        }
        assert_eq!(group.step(&other), Step::Again);
    }
    let log = log.lock();
    let last = left.map(|n| log.iter().position(|ran| *ran == n).expect("it ran")).max();
    assert!(last.is_some_and(|last| last <= 2 * 2 * 64 + 64), "after {last:?}");
}

#[test]
fn stepped_what_a_worker_of_a_saturated_pod_has_reserved_is_run_by_a_helper_that_goes_idle_then() {
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

#[test]
fn stepped_what_waits_is_left_to_those_that_take_until_one_is_long_at_an_item() {
    let (group, log) = (group(1, 2), Log::default());
    let [takes, idle] = [group.enlist(0), group.enlist(0)];
    park(&group, &idle);
    group.takes_a_stream(&takes);
    push(&group, 0, &log, 0);
    assert!(!idle.take_wake(), "it is left to the one that takes");
    assert!(group.is_stuck(0), "the timekeeper looks after it");
    shows_an_item(&takes);
    assert!(group.look(0).is_some() && !idle.take_wake(), "it may have begun just now");
    assert!(group.look(0).is_none() && idle.take_wake(), "it is at the same item still");
    assert_eq!(group.step(&idle), Step::Again);
    assert_eq!(*log.lock(), [0]);
}

#[test]
fn stepped_what_is_left_to_a_taker_that_found_nothing_is_seen_to_where_it_blocks_in_the_next_item()
{
    let (group, log) = (group(1, 2), Log::default());
    let [takes, idle] = [group.enlist(0), group.enlist(0)];
    park(&group, &idle);
    group.takes_a_stream(&takes);
    push(&group, 0, &log, 0);
    // It has looked before that came, and is no taker from now on.
    assert_eq!(group.go_idle(&takes), Step::Again);
    push(&group, 0, &log, 1);
    assert!(idle.take_wake(), "who pushes sees that nobody takes a stream");
    assert_eq!(group.step(&takes), Step::Again);
    assert_eq!(group.step(&idle), Step::Again);
    assert_eq!(log.lock().len(), 2);
}

#[test]
fn stepped_who_takes_and_blocks_leaves_what_waits_to_another() {
    let (group, log) = (group(1, 2), Log::default());
    let [takes, idle] = [group.enlist(0), group.enlist(0)];
    park(&group, &idle);
    group.takes_a_stream(&takes);
    push(&group, 0, &log, 0);
    assert!(!idle.take_wake());
    group.begin_blocking(&takes);
    assert!(idle.take_wake());
    assert_eq!(group.step(&idle), Step::Again);
    assert_eq!(*log.lock(), [0]);
}

#[test]
fn stepped_what_waits_is_left_to_those_that_take_until_one_is_excused() {
    for why in [Excuse::Asleep, Excuse::Intensive] {
        let (group, log) = (group(1, 2), Log::default());
        let [takes, idle] = [group.enlist(0), group.enlist(0)];
        park(&group, &idle);
        group.takes_a_stream(&takes);
        push(&group, 0, &log, 0);
        assert!(!idle.take_wake(), "it is left to the one that takes");
        shows_an_item(&takes);
        let instance = takes.shown.read().expect("it runs").instance;
        assert!(group.excuse(&takes, instance, why));
        assert!(idle.take_wake(), "{why:?}");
        assert_eq!(group.step(&idle), Step::Again);
        assert_eq!(*log.lock(), [0]);
    }
}
