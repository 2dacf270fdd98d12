//! Policy: which CPU submits to which hardware queue. Pure functions over plain numbers.

use std::collections::HashMap;

/// Where a CPU sits, as far as the map cares. CPUs are spread in the order of these fields, so
/// that a hardware queue's CPUs share a node, then a cache, then a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuPlace {
    /// NUMA node; any number where the machine tells none.
    pub node: u32,
    /// Last-level cache.
    pub llc: u32,
    /// Core.
    pub core: u32,
    /// The CPU's own number.
    pub cpu: u32,
}

/// Where a CPU's requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the hardware queue.
    pub hctx: usize,
    /// Index of the CPU's software queue within it.
    pub slot: usize,
}

/// The map of a queue: each CPU's hardware queue and software queue.
#[derive(Clone, Debug)]
pub struct CpuMap {
    by_cpu: HashMap<u32, Place>,
    /// Places in spread order, for CPUs that the machine didn't know.
    spread: Vec<Place>,
    /// Each hardware queue's CPUs.
    groups: Vec<Vec<u32>>,
}

impl CpuMap {
    /// Spreads the CPUs over `hw_queues` hardware queues: contiguous runs of about the same
    /// length in the order of [`CpuPlace`]. There are never more hardware queues than CPUs, and
    /// always at least one.
    pub fn new(mut cpus: Vec<CpuPlace>, hw_queues: usize) -> Self {
        cpus.sort_unstable();
        if cpus.is_empty() {
            cpus.push(CpuPlace { node: 0, llc: 0, core: 0, cpu: 0 });
        }
        let n = cpus.len();
        let hw_queues = hw_queues.clamp(1, n);
        let groups: Vec<Vec<u32>> = (0..hw_queues)
            .map(|h| {
                cpus[h * n / hw_queues..(h + 1) * n / hw_queues].iter().map(|c| c.cpu).collect()
            })
            .collect();
        let mut by_cpu = HashMap::with_capacity(n);
        let mut spread = Vec::with_capacity(n);
        for (hctx, group) in groups.iter().enumerate() {
            for (slot, &cpu) in group.iter().enumerate() {
                by_cpu.insert(cpu, Place { hctx, slot });
                spread.push(Place { hctx, slot });
            }
        }
        Self { by_cpu, spread, groups }
    }

    /// Where `cpu` submits. A CPU that wasn't there when the map was made borrows the place of
    /// another; software queues take any number of pushers.
    pub fn place(&self, cpu: u32) -> Place {
        match self.by_cpu.get(&cpu) {
            Some(&place) => place,
            None => self.spread[cpu as usize % self.spread.len()],
        }
    }

    /// How many hardware queues there are.
    pub fn hw_queues(&self) -> usize {
        self.groups.len()
    }

    /// The CPUs of a hardware queue, in the order of their software queues.
    pub fn cpus(&self, hctx: usize) -> &[u32] {
        &self.groups[hctx]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(n: u32, per_llc: u32) -> Vec<CpuPlace> {
        // Numbered across the caches, as firmware likes to do.
        let llcs = n / per_llc;
        (0..n).map(|cpu| CpuPlace { node: 0, llc: cpu % llcs, core: cpu, cpu }).collect()
    }

    #[test]
    fn a_hardware_queue_never_spans_two_caches_where_it_need_not() {
        let map = CpuMap::new(cpus(8, 4), 2);
        assert_eq!(map.cpus(0), [0, 2, 4, 6]);
        assert_eq!(map.cpus(1), [1, 3, 5, 7]);
        assert_eq!(map.place(5), Place { hctx: 1, slot: 2 });
    }

    #[test]
    fn every_cpu_has_one_place_and_the_queues_differ_by_one_cpu_at_most() {
        for n in 1..40 {
            for hw in 1..50 {
                let map = CpuMap::new(cpus(n, 1), hw);
                assert_eq!(map.hw_queues(), hw.min(n as usize));
                let sizes: Vec<_> = (0..map.hw_queues()).map(|h| map.cpus(h).len()).collect();
                assert_eq!(sizes.iter().sum::<usize>(), n as usize);
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                for cpu in 0..n {
                    let place = map.place(cpu);
                    assert_eq!(map.cpus(place.hctx)[place.slot], cpu);
                }
            }
        }
    }

    #[test]
    fn an_unknown_cpu_and_a_machine_without_cpus_still_have_a_place() {
        assert_eq!(CpuMap::new(cpus(4, 4), 2).place(1002).hctx, 1);
        assert_eq!(CpuMap::new(Vec::new(), 7).place(3), Place { hctx: 0, slot: 0 });
    }
}
