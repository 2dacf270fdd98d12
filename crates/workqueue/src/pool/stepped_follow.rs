//! The pools follow the machine, stepped by hand on one thread in a chosen order.
#![allow(clippy::unwrap_used, reason = "helpers of tests say what they expect by unwrapping")]

use std::sync::Arc;

use corewise_topology::{CpuId, CpuSet, Machine};

use super::group::{Group, Step};
use super::stepped::{Log, group, park, push};
use crate::pool::policy::{self, WantedCpus};

/// Makes the group's pods follow `machine`, of these CPUs each.
fn follow(group: &Arc<Group>, machine: &Machine, pods: &[CpuSet]) {
    let masks = machine.masks();
    group.follow_to(masks.epoch, None, |spec| {
        policy::home(&pods[spec.pod as usize], WantedCpus::Housekeeping, &masks)
    });
}

fn offline(machine: &Machine, cpus: impl IntoIterator<Item = u32>) {
    for cpu in cpus {
        assert!(machine.set_online(CpuId::new(cpu), false).unwrap());
    }
}

/// Returns two pods of two CPUs. Enlist as many workers as a pod may use at once, or it makes
/// threads.
fn two_pods() -> (Machine, [CpuSet; 2], Arc<Group>) {
    let machine = Machine::synthetic("core:4 pu:1").unwrap();
    let pods = ["0-1", "2-3"].map(|list| list.parse().unwrap());
    (machine, pods, group(2, 2))
}

#[test]
fn stepped_a_pod_that_loses_a_cpu_runs_one_item_less_and_the_other_pod_is_asked() {
    let (machine, pods, group) = two_pods();
    let log = Log::default();
    let (_busy, home) = (group.enlist(0), group.enlist(0));
    let (_also, other) = (group.enlist(1), group.enlist(1));
    park(&group, &home);
    park(&group, &other);
    push(&group, 0, &log, 1);
    assert!(home.take_wake());
    offline(&machine, [1]);
    follow(&group, &machine, &pods);
    // The worker's core was taken away on the way to the item: it leaves the item to pod 1.
    assert!(matches!(group.step(&home), Step::Park { .. }));
    assert!(other.take_wake());
    assert_eq!(group.step(&other), Step::Again);
    assert_eq!(*log.lock(), [1]);
}

#[test]
fn stepped_work_that_waits_runs_when_a_cpu_of_its_pod_comes() {
    let (machine, pods, group) = two_pods();
    offline(&machine, [1, 2, 3]);
    follow(&group, &machine, &pods);
    let log = Log::default();
    let (_busy, home, _elsewhere) = (group.enlist(0), group.enlist(0), group.enlist(1));
    park(&group, &home);
    push(&group, 0, &log, 1);
    assert!(!home.take_wake(), "the pod's one core is taken");
    machine.set_online(CpuId::new(1), true).unwrap();
    follow(&group, &machine, &pods);
    assert!(home.take_wake());
    assert_eq!(group.step(&home), Step::Again);
    assert_eq!(*log.lock(), [1]);
}

#[test]
fn stepped_a_pod_without_cpus_still_runs_its_work_and_comes_home() {
    let (machine, pods, group) = two_pods();
    let log = Log::default();
    let (_busy, worker) = (group.enlist(0), group.enlist(0));
    park(&group, &worker);
    offline(&machine, [0, 1]);
    follow(&group, &machine, &pods);
    let pool = &group.pools[0];
    assert!(pool.reading().away());
    assert_eq!(pool.cpus(), pods[1], "its workers may run wherever work may");
    push(&group, 0, &log, 1);
    assert!(worker.take_wake());
    assert_eq!(group.step(&worker), Step::Again);
    assert_eq!(*log.lock(), [1]);

    machine.set_online(CpuId::new(0), true).unwrap();
    follow(&group, &machine, &pods);
    assert!(!pool.reading().away());
    assert_eq!(pool.cpus().to_string(), "0");
}

#[test]
fn stepped_an_epoch_that_comes_late_changes_nothing() {
    let (machine, pods, group) = two_pods();
    let old = machine.masks();
    offline(&machine, [0]);
    follow(&group, &machine, &pods);
    group.follow_to(old.epoch, None, |_| unreachable!("it is older than what was followed"));
    assert_eq!(group.pools[0].cpus().to_string(), "1");
}

#[test]
fn stepped_a_pod_that_shrinks_while_its_cores_are_taken_goes_on_and_sorts_itself_out() {
    let (machine, pods, group) = two_pods();
    let log = Log::default();
    offline(&machine, [2, 3]);
    follow(&group, &machine, &pods);
    let (workers, _elsewhere) = ([group.enlist(0), group.enlist(0)], group.enlist(1));
    offline(&machine, [1]);
    follow(&group, &machine, &pods);
    for n in 0..3 {
        push(&group, 0, &log, n);
    }
    // Both were active when the core went: the first that looks for work makes room.
    assert!(matches!(group.step(&workers[0]), Step::Park { .. }));
    while let Step::Again = group.step(&workers[1]) {}
    assert_eq!(*log.lock(), [0, 1, 2]);
}
