//! `corewise-bench machine`: the file, also if few CPUs may be used.
#![allow(clippy::unwrap_used)]

use corewise_costs::{Costs, Distance};
use corewise_topology::{CpuSet, Machine, pin_current_thread};

use crate::Folder;

#[test]
fn the_file_is_read_again() {
    let folder = Folder::new();
    let ran = folder.bench(["machine", "--quick"]).ok();
    assert_eq!(ran.stderr, "", "{ran}");
    assert_eq!(folder.list(), [""; 0], "something was left behind");
    let costs = Costs::read(&ran.stdout).unwrap();
    let cpus = Machine::live().unwrap().online().len();
    assert_eq!(costs.machine.unwrap().cpu_count as usize, cpus);
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
    assert!(costs.call.bare_ns.p50 > 0.0, "{ran}");
    assert!(costs.distance.is_empty());
    assert_eq!(costs.contended.iter().map(|one| one.cpus).collect::<Vec<_>>(), [1]);
    assert!(!costs.wake.is_empty());
    assert!(costs.wake.iter().all(|wake| wake.distance == Distance::Same));
    assert!(costs.call.membarrier_one_ns.is_none());
    assert!(costs.allocator.unwrap().free_elsewhere_ns.is_none());
}

#[test]
fn wrong_usage_is_reported_before_the_measurement() {
    let folder = Folder::new();
    let refused = |code: i32, args: &[&str], says: &[&str]| {
        folder.bench([&["machine"], args].concat()).code(code).complains(says);
    };
    refused(2, &["--cpus", "0"], &["--cpus"]);
    refused(2, &["workqueue"], &["workqueue"]);
    folder.bench(["--quick", "machine"]).code(2).complains(&["machine"]);
    assert_eq!(folder.list(), [""; 0]);
}
