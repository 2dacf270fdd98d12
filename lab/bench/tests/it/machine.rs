//! `machine::measure` makes a whole file, even of a larger machine than this one. The tests of
//! `corewise-bench machine` measure all CPUs of this machine, and one of them.
#![allow(clippy::unwrap_used)]

use corewise_bench::bench::Effort;
use corewise_bench::machine::{Plan, measure};
use corewise_costs::{Costs, Distance, Target};
use corewise_topology::{Machine, Topology};

fn quick(machine: &Machine) -> Costs {
    let (date, commit) = ("today".to_owned(), "none".to_owned());
    measure(machine, &Plan { effort: Effort::Quick, date, commit }).unwrap()
}

/// Checks that the measured costs can be read from their file. It asserts no time: a file's figures
/// are at least 0, and rise.
fn is_a_file(costs: &Costs) {
    assert_eq!(Costs::read(&costs.write()).as_ref(), Ok(costs));
}

/// Checks the keys of a described machine, on which threads aren't pinned. The figures mean
/// nothing.
#[test]
fn each_distance_of_a_larger_machine_is_measured() {
    let topology = Topology::synthetic("numa:2 l3:2 core:1 pu:1").unwrap();
    let machine = Machine::new(topology.with_allowed(&"0-2".parse().unwrap()).unwrap());
    let costs = quick(&machine);
    is_a_file(&costs);
    let described = costs.machine.as_ref().unwrap();
    assert_eq!((&*described.commit, &*described.effort), ("none", "quick"));
    let noise = costs.noise.as_ref().unwrap();
    assert_eq!(noise.quiet, noise.said.is_empty(), "{noise:?}");
    let distances: Vec<Distance> = costs.distance.keys().copied().collect();
    assert_eq!(distances, [Distance::Numa, Distance::System]);
    assert!(costs.distance.values().all(|one| one.list_read_ns.is_some()), "there is a third CPU");
    assert_eq!(costs.contended.iter().map(|one| one.cpus).collect::<Vec<_>>(), [1, 2, 3]);
    let woken = |distance, target| {
        costs.wake.iter().filter(|one| (one.distance, one.target) == (distance, target)).count()
    };
    for distance in distances {
        assert!(woken(distance, Target::Idle) >= 3, "{distance:?}");
        assert_eq!(woken(distance, Target::Busy), 2, "{distance:?}");
    }
    assert_eq!(woken(Distance::Same, Target::Busy), 2);
}
