//! `machine::measure`: what it gives has all that a file must have, of a larger machine than this
//! one (the tests of `corewise-bench machine` measure all CPUs of this one, and one of them).
#![allow(clippy::unwrap_used)]

use corewise_bench::bench::Effort;
use corewise_bench::machine::{Plan, Step, measure};
use corewise_costs::{Costs, Distance, Matrix, Target};
use corewise_topology::{CpuId, Machine, Topology};

fn quick(machine: &Machine) -> Costs {
    let (date, commit) = ("today".to_owned(), "none".to_owned());
    let plan = Plan { cpus: None, effort: Effort::Quick, date, commit };
    let mut steps = Vec::new();
    let costs = measure(machine, &plan, |step| steps.push(step.done)).unwrap();
    assert!(steps.len() > 5 && steps.is_sorted(), "{steps:?}");
    assert!(steps.iter().all(|done| *done < Step::ALL), "{steps:?}");
    costs
}

/// What was measured is a file, and no time is asserted: a file's figures are at least 0, and rise.
fn is_a_file(costs: &Costs) {
    assert_eq!(Costs::read(&costs.write()).as_ref(), Ok(costs));
}

/// Each pair, and nothing on the diagonal.
fn has_all_pairs(matrix: &Matrix, cpus: &[CpuId]) {
    let mut measured: Vec<_> = matrix.cpus.iter().copied().map(CpuId::new).collect();
    measured.sort_unstable();
    assert_eq!(measured, cpus);
    for rows in [&matrix.one_way_ns, &matrix.locked_ns] {
        assert_eq!(rows.len(), cpus.len());
        for (from, row) in rows.iter().enumerate() {
            assert_eq!(row.len(), cpus.len());
            for (to, value) in row.iter().enumerate() {
                assert_eq!(*value > 0.0, from != to, "{from} to {to}: {value}");
                assert_eq!(*value, rows[to][from], "both ways are one round trip");
            }
        }
    }
}

/// On a described machine threads aren't pinned: the figures mean nothing, but all are there.
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
    has_all_pairs(costs.matrix.as_ref().unwrap(), &[CpuId::new(0), CpuId::new(1), CpuId::new(2)]);
    let distances: Vec<Distance> = costs.distance.keys().copied().collect();
    assert_eq!(distances, [Distance::Numa, Distance::System]);
    let pairs = |distance| costs.distance[&distance].pairs;
    assert_eq!(distances.iter().copied().map(pairs).collect::<Vec<_>>(), [1, 2]);
    assert!(costs.distance.values().all(|one| one.list_read_ns.is_some()), "there is a third CPU");
    assert_eq!(costs.contended.iter().map(|one| one.cpus).collect::<Vec<_>>(), [1, 2, 3]);
    let woken = |distance, target| {
        costs.wake.iter().filter(|one| (one.distance, one.target) == (distance, target)).count()
    };
    for distance in distances {
        assert!(woken(distance, Target::Idle) >= 3, "{distance}");
        assert_eq!(woken(distance, Target::Busy), 2, "{distance}");
    }
    assert_eq!(woken(Distance::Same, Target::Busy), 2);
}
