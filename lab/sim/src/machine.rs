//! The CPUs of a machine, and their distances.

use std::sync::Arc;

/// Place of a CPU. Equal numbers mean the same core, the same last-level cache, the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The core: CPUs of one core are SMT siblings.
    pub core: u32,
    /// The last-level cache.
    pub llc: u32,
    /// The memory node.
    pub node: u32,
}

/// Distance that a cache line or a wake-up travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// One CPU.
    Here,
    /// An SMT sibling.
    Core,
    /// Another core of the same last-level cache.
    Cache,
    /// Another last-level cache of the same node.
    Node,
    /// Another node.
    Far,
}

impl Distance {
    /// All distances, from near to far.
    pub const ALL: [Distance; 5] =
        [Distance::Here, Distance::Core, Distance::Cache, Distance::Node, Distance::Far];

    /// Returns the distance's word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Distance::Here => "here",
            Distance::Core => "core",
            Distance::Cache => "cache",
            Distance::Node => "node",
            Distance::Far => "far",
        }
    }
}

/// The CPUs of a machine, by number.
#[derive(Debug, Clone)]
pub struct Machine {
    places: Vec<Place>,
    distances: Vec<Distance>,
    description: Option<Arc<str>>,
    real_time: bool,
}

impl Machine {
    /// Greatest number of CPUs.
    pub const MOST_CPUS: usize = 1024;

    /// Creates a machine from the place of each CPU.
    ///
    /// # Panics
    /// If there is no CPU, or there are more than [`Machine::MOST_CPUS`].
    pub fn new(places: Vec<Place>) -> Machine {
        assert!(
            (1..=Machine::MOST_CPUS).contains(&places.len()),
            "a machine of {} CPUs",
            places.len()
        );
        let mut distances = Vec::with_capacity(places.len() * places.len());
        for (one, from) in places.iter().enumerate() {
            for (other, to) in places.iter().enumerate() {
                distances.push(if one == other {
                    Distance::Here
                } else if from.core == to.core {
                    Distance::Core
                } else if from.llc == to.llc {
                    Distance::Cache
                } else if from.node == to.node {
                    Distance::Node
                } else {
                    Distance::Far
                });
            }
        }
        Machine { places, distances, description: None, real_time: false }
    }

    /// Creates a machine of cores under one cache, without SMT.
    pub fn flat(cpus: u32) -> Machine {
        Machine::new((0..cpus).map(|core| Place { core, llc: 0, node: 0 }).collect())
    }

    /// Sets the description, which [`description`](crate::description) returns.
    #[must_use]
    pub fn described(self, description: &str) -> Machine {
        Machine { description: Some(description.into()), ..self }
    }

    /// Permits real-time priorities. Without it they are refused, as to any user without rights.
    #[must_use]
    pub fn with_real_time(self, real_time: bool) -> Machine {
        Machine { real_time, ..self }
    }

    pub(crate) fn has_real_time(&self) -> bool {
        self.real_time
    }

    pub(crate) fn description(&self) -> Option<String> {
        self.description.as_deref().map(str::to_owned)
    }

    /// Returns the number of CPUs.
    pub fn cpus(&self) -> usize {
        self.places.len()
    }

    /// Returns the distance of two CPUs.
    #[inline]
    pub fn distance(&self, from: usize, to: usize) -> Distance {
        self.distances[from * self.places.len() + to]
    }
}

/// A set of CPUs below 1 024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask([u64; 16]);

impl Mask {
    /// The empty set.
    pub const EMPTY: Mask = Mask([0; 16]);

    /// Returns the set of the first `cpus` CPUs.
    pub fn first(cpus: usize) -> Mask {
        let mut mask = Mask::EMPTY;
        (0..cpus).for_each(|cpu| mask.set(cpu));
        mask
    }

    /// Adds a CPU.
    #[inline]
    pub fn set(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    /// Returns true if the set has the CPU.
    #[inline]
    pub fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64] & (1 << (cpu % 64)) != 0
    }

    /// Returns true if the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the CPUs that are in both sets.
    pub fn and(&self, other: &Mask) -> Mask {
        Mask(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Iterates over the CPUs from low to high.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros() as usize;
                    left &= left - 1;
                    index * 64 + bit
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_go_by_core_then_cache_then_node() {
        let place = |core, llc, node| Place { core, llc, node };
        let machine = Machine::new(vec![
            place(0, 0, 0),
            place(0, 0, 0),
            place(1, 0, 0),
            place(2, 1, 0),
            place(3, 2, 1),
        ]);
        let from_0: Vec<_> = (0..5).map(|to| machine.distance(0, to)).collect();
        assert_eq!(from_0, Distance::ALL);
    }

    #[test]
    fn a_mask_gives_back_its_cpus_in_order() {
        let mut mask = Mask::EMPTY;
        for cpu in [700, 3, 64] {
            mask.set(cpu);
        }
        assert_eq!(mask.iter().collect::<Vec<_>>(), [3, 64, 700]);
        assert!(mask.has(3) && !mask.has(4) && !mask.is_empty());
        assert_eq!(mask.and(&Mask::first(64)).iter().collect::<Vec<_>>(), [3]);
    }
}
