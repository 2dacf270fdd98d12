//! Which scopes and shard sizes are the same pods on a machine.

use corewise_topology::{AffinityScope, CpuSet, Pods, Topology};

use crate::names::Place;

/// The pods of each scope and shard size, as far as a comparison has to know them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    cpus: usize,
    /// Each place with the CPUs of its pods.
    places: Vec<(Place, Vec<CpuSet>)>,
}

impl Layout {
    /// Of a machine: each scope with the default shard size, and `cache_shard` with these sizes too.
    pub fn of(topology: &Topology, shard_sizes: &[u32]) -> Layout {
        let mut places: Vec<Place> = AffinityScope::ALL.map(Place::of).to_vec();
        places.extend(shard_sizes.iter().map(|&cores| Place::shards(cores)));
        let pods_of = |place: Place| {
            let pods = Pods::new(topology, place.shard_size);
            pods.scope(place.scope).iter().map(|pod| pod.cpus.clone()).collect()
        };
        Layout {
            cpus: topology.allowed().len(),
            places: places.into_iter().map(|place| (place, pods_of(place))).collect(),
        }
    }

    /// How many CPUs the process may use.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    /// How many pods a place has; `None` of a place that isn't known.
    pub fn pods(&self, place: Place) -> Option<usize> {
        self.find(place).map(<[CpuSet]>::len)
    }

    /// Whether the two are the same pods: then nothing but the noise makes them differ.
    pub fn same(&self, a: Place, b: Place) -> bool {
        a == b || self.find(a).is_some_and(|pods| self.find(b) == Some(pods))
    }

    fn find(&self, place: Place) -> Option<&[CpuSet]> {
        self.places.iter().find(|(known, _)| *known == place).map(|(_, pods)| pods.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_with_the_same_pods_are_the_same() {
        let topology = Topology::synthetic("l3:1 core:2 pu:1").unwrap();
        let layout = Layout::of(&topology, &[2, 4]);
        let of = Place::of;
        assert!(layout.same(of(AffinityScope::Cpu), of(AffinityScope::Smt)));
        assert!(layout.same(of(AffinityScope::Cache), Place::default()));
        assert!(layout.same(Place::shards(4), of(AffinityScope::System)));
        assert!(!layout.same(of(AffinityScope::Cpu), Place::default()));
        assert_eq!(layout.pods(of(AffinityScope::Cpu)), Some(2));
        assert_eq!((layout.pods(Place::shards(3)), layout.cpus()), (None, 2));
    }
}
