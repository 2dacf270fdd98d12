//! The CPUs and pairs that are measured, and the distance of two CPUs.

use std::collections::BTreeMap;

use corewise_costs::Distance;
use corewise_topology::{CpuId, CpuSet, Topology};

/// Greatest number of CPUs that are measured: all pairs of 64 are 2016. If there are more, a sample
/// is measured.
pub(super) const MOST_CPUS: usize = 64;

/// Returns the distance of two CPUs: the narrowest affinity scope that holds both. An unknown core,
/// cache or node is shared with no other CPU. CPUs that the topology doesn't have are farthest
/// apart.
fn distance(topology: &Topology, a: CpuId, b: CpuId) -> Distance {
    if a == b {
        return Distance::Same;
    }
    let (Some(a), Some(b)) = (topology.cpu(a), topology.cpu(b)) else { return Distance::System };
    let same = |a: Option<u32>, b: Option<u32>| a.is_some() && a == b;
    if same(a.core, b.core) {
        Distance::Smt
    } else if same(a.llc, b.llc) {
        Distance::Cache
    } else if same(a.node, b.node) {
        Distance::Numa
    } else {
        Distance::System
    }
}

/// Returns at most `most` of these CPUs, sorted by node, last-level cache and core. If there are
/// more, groups of four neighbours of a cache are taken, evenly spread: so each distance occurs.
pub(super) fn choose(topology: &Topology, cpus: &CpuSet, most: usize) -> Vec<CpuId> {
    let mut all: Vec<_> = cpus.iter().filter_map(|cpu| topology.cpu(cpu)).collect();
    all.sort_by_key(|cpu| (cpu.node, cpu.package, cpu.llc, cpu.core, cpu.cpu));
    let caches = all.chunk_by(|a, b| (a.node, a.llc) == (b.node, b.llc));
    let blocks: Vec<_> = caches.flat_map(|cache| cache.chunks(4)).collect();
    let chosen = if all.len() <= most { blocks } else { spread(&blocks, most / 4) };
    chosen.concat().iter().map(|cpu| cpu.cpu).collect()
}

/// Returns at most `most` of these values, evenly spread, in their order, with the first.
pub(super) fn spread<T: Copy>(all: &[T], most: usize) -> Vec<T> {
    let count = all.len().min(most);
    (0..count).map(|at| all[at * all.len() / count]).collect()
}

/// Pairs of the chosen CPUs, by distance.
#[derive(Debug)]
pub(super) struct Pairs {
    cpus: Vec<CpuId>,
    by_distance: BTreeMap<Distance, Vec<(CpuId, CpuId)>>,
}

impl Pairs {
    pub(super) fn new(topology: &Topology, cpus: &[CpuId]) -> Pairs {
        let mut by_distance: BTreeMap<Distance, Vec<(CpuId, CpuId)>> = BTreeMap::new();
        for (at, &a) in cpus.iter().enumerate() {
            for &b in &cpus[at + 1..] {
                by_distance.entry(distance(topology, a, b)).or_default().push((a, b));
            }
        }
        Pairs { cpus: cpus.to_vec(), by_distance }
    }

    /// Returns the distances of the pairs, from near to far.
    pub(super) fn distances(&self) -> Vec<Distance> {
        self.by_distance.keys().copied().collect()
    }

    /// Returns all pairs of one distance.
    pub(super) fn of(&self, distance: Distance) -> &[(CpuId, CpuId)] {
        self.by_distance.get(&distance).map_or(&[], Vec::as_slice)
    }

    /// Returns a CPU that is neither of these two.
    pub(super) fn third(&self, (a, b): (CpuId, CpuId)) -> Option<CpuId> {
        self.cpus.iter().copied().find(|cpu| *cpu != a && *cpu != b)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_cpus_are_as_far_apart_as_the_narrowest_scope_that_holds_both() {
        let topology = Topology::synthetic("numa:2 l3:2 core:2 pu:2").unwrap();
        for (other, expected) in [
            (0, Distance::Same),
            (1, Distance::Smt),
            (2, Distance::Cache),
            (4, Distance::Numa),
            (8, Distance::System),
            (99, Distance::System),
        ] {
            let (first, other) = (CpuId::new(0), CpuId::new(other));
            assert_eq!(distance(&topology, first, other), expected, "{other}");
            assert_eq!(distance(&topology, other, first), expected, "{other}");
        }
    }

    #[test]
    fn of_many_cpus_a_sample_has_each_distance_that_there_is() {
        for spec in [
            "core:1 pu:1",
            "l3:1 core:16 pu:1",
            "l3:1 core:72 pu:1",
            "l3:1 core:72 pu:2",
            "numa:2 l3:1 core:36 pu:2",
            "numa:2 l3:8 core:8 pu:2",
            "package:2 numa:4 l3:16 core:2 pu:2",
        ] {
            let topology = Topology::synthetic(spec).unwrap();
            let all: Vec<CpuId> = topology.cpu_set().iter().collect();
            let chosen = choose(&topology, &topology.cpu_set(), MOST_CPUS);
            assert!(chosen.len() <= MOST_CPUS, "{spec}: {}", chosen.len());
            assert!(chosen.len() >= all.len().min(MOST_CPUS / 2), "{spec}: {}", chosen.len());
            let once: BTreeSet<_> = chosen.iter().collect();
            assert_eq!(once.len(), chosen.len(), "{spec}");
            let of = |cpus: &[CpuId]| Pairs::new(&topology, cpus).distances();
            assert_eq!(of(&chosen), of(&all), "{spec}");
        }
    }
}
