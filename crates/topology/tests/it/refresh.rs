//! Tests of refreshes: the present state of a saved tree is applied as one change.

use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine, TopologyError};

#[allow(dead_code, reason = "a part of it is used here")]
use crate::support::{Regular, Siblings, Tree};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn tree() -> Tree {
    Tree::regular(Regular { packages: 2, cores: 2, threads: 2, siblings: Siblings::Far })
}

#[test]
fn a_refresh_follows_online_and_isolated_as_one_change() {
    let tree = tree();
    let machine = Machine::new(tree.read());
    let before = machine.pods(8);
    assert_eq!(machine.refresh().unwrap(), None, "nothing has changed");

    tree.offline("5");
    tree.write("cpu/isolated", "1-2");
    let change = machine.refresh().unwrap().unwrap();
    assert_eq!(change.before.online, set("0-7"));
    assert_eq!(change.after.online, set("0-4,6-7"));
    assert_eq!(change.after, machine.masks());
    assert_eq!(machine.epoch(), 2, "one change");
    assert_eq!(machine.housekeeping(), set("0,3-4,6-7"));
    assert_eq!(machine.pods(8), before, "pods keep their numbers");

    tree.write("cpu/online", "0-7");
    tree.write("cpu/isolated", "");
    let change = machine.refresh().unwrap().unwrap();
    assert_eq!(change.after.online, set("0-7"), "it is back in the pod that it never left");
    assert_eq!(
        before.pod_of(AffinityScope::Smt, CpuId::new(5)),
        before.pod_of(AffinityScope::Smt, CpuId::new(1))
    );
    assert_eq!(machine.refresh().unwrap(), None);
}

#[test]
fn a_refresh_sets_right_what_was_set_by_hand() {
    let machine = Machine::new(tree().read());
    let tree = tree();
    let followed = Machine::new(tree.read());
    followed.set_online(CpuId::new(3), false).unwrap();
    followed.set_isolated(&set("0"));
    assert!(followed.refresh().unwrap().is_some());
    assert_eq!(followed.masks().online, machine.masks().online);
    assert_eq!(followed.masks().isolated, set(""));
}

#[test]
fn a_cpu_that_the_topology_does_not_have_stays_out() {
    let tree = tree();
    let machine = Machine::new(tree.read());
    tree.write("cpu/present", "0-8");
    tree.write("cpu/online", "0-8");
    assert_eq!(machine.refresh().unwrap(), None);
    assert_eq!(machine.online(), set("0-7"));
}

#[test]
fn a_refresh_that_fails_or_would_leave_no_cpu_changes_nothing() {
    let tree = tree();
    let topology = tree.read().with_allowed(&set("0-1")).unwrap();
    let machine = Machine::new(topology);
    tree.write("cpu/online", "2-7");
    let error = machine.refresh().unwrap_err();
    assert!(matches!(error, TopologyError::NoCpu { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("CPUs 0-1") && error.contains("2-7"), "{error}");
    tree.write("cpu/online", "some");
    let error = machine.refresh().unwrap_err();
    assert!(error.to_string().contains("cpu/online says 'some'"), "{error}");
    assert_eq!((machine.online(), machine.epoch()), (set("0-1"), 1));
}

#[test]
fn a_machine_that_was_described_does_not_change_by_itself() {
    let machine = Machine::synthetic("core:4 pu:1").unwrap();
    machine.set_online(CpuId::new(1), false).unwrap();
    assert_eq!(machine.refresh().unwrap(), None);
    assert_eq!(machine.online(), set("0,2-3"));
}
