//! `corewise-bench machine`: the file, also where few CPUs may be used.
#![allow(clippy::unwrap_used)]

use corewise_costs::{Costs, Distance};
use corewise_topology::{CpuSet, Machine, pin_current_thread};

use crate::Folder;

#[test]
fn the_file_is_read_again() {
    let folder = Folder::new();
    let ran = folder.bench(["machine", "--quick", "--out", "costs.toml"]).ok();
    assert_eq!((&*ran.stdout, &*ran.stderr), ("", ""), "{ran}");
    assert_eq!(folder.list(), ["costs.toml"], "something was left behind");
    let costs =
        Costs::read(&std::fs::read_to_string(folder.path().join("costs.toml")).unwrap()).unwrap();
    let cpus = Machine::live().unwrap().online().len().min(64);
    assert_eq!(costs.matrix.unwrap().cpus.len(), cpus);
}

#[test]
fn a_process_that_may_use_one_cpu_measures_that_one_which_has_no_distances_and_all_else() {
    let folder = Folder::new();
    let last = Machine::live().unwrap().online().last().unwrap();
    // A child of this thread inherits that.
    pin_current_thread(&CpuSet::from_iter([last])).unwrap();
    let ran = folder.bench(["machine", "--quick"]).ok();
    let costs = Costs::read(&ran.stdout).unwrap();
    assert_eq!(costs.machine.as_ref().unwrap().cpus, last.to_string());
    assert_eq!(costs.matrix.as_ref().unwrap().cpus, [last.number()]);
    assert!(costs.call.bare_ns.p50 > 0.0, "{ran}");
    assert!(costs.distance.is_empty());
    assert_eq!(costs.contended.iter().map(|one| one.cpus).collect::<Vec<_>>(), [1]);
    assert!(!costs.wake.is_empty());
    assert!(costs.wake.iter().all(|wake| wake.distance == Distance::Same));
    assert!(costs.call.membarrier_one_ns.is_none());
    assert!(costs.allocator.iter().all(|one| one.free_elsewhere_ns.is_none()));
}

#[test]
fn wrong_usage_is_reported_before_the_measurement() {
    let folder = Folder::new();
    let refused = |code: i32, args: &[&str], says: &[&str]| {
        folder.bench([&["machine"], args].concat()).code(code).complains(says);
    };
    refused(1, &["--out", "no/costs.toml"], &["cannot write 'no/costs.toml'"]);
    refused(1, &["--cpus", "0,4000"], &["can't use CPUs 4000", "this process may use CPUs"]);
    refused(2, &["--cpus", "3-1"], &["--cpus"]);
    refused(2, &["--cpus", ""], &["0-3,8"]);
    refused(2, &["workqueue"], &["workqueue"]);
    folder.bench(["--quick", "machine"]).code(2).complains(&["machine"]);
    assert_eq!(folder.list(), [""; 0]);
}
