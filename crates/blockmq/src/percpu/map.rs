//! Policy: the CPUs of a queue, and how its hardware queues divide them. Pure functions over plain numbers.

use corewise_topology::CpuId;

/// Where a CPU sits, as far as the map cares. CPUs are numbered in the order of these fields, so that each
/// node, cache, shard and core is a run of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuPlace {
    /// NUMA node; any number where the machine tells none.
    pub node: u32,
    /// Last-level cache.
    pub llc: u32,
    /// Cache shard.
    pub shard: u32,
    /// Core.
    pub core: u32,
    /// The CPU's own number.
    pub cpu: CpuId,
}

/// How many hardware queues there are, and which CPUs share one. A driver's room is never exceeded: where it
/// has less, neighbours share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HwQueues {
    /// One for each CPU.
    PerCpu,
    /// One for each cache shard (some eight cores that share a cache).
    PerShard,
    /// One for each last-level cache. (In each node, should a cache span several.)
    PerCache,
    /// One for each NUMA node.
    PerNode,
    /// This many, and never more than there are CPUs; each has about as many CPUs as the others.
    Count(usize),
}

impl From<usize> for HwQueues {
    fn from(n: usize) -> Self {
        Self::Count(n)
    }
}

/// The CPUs of a queue. Each has a **slot**: a number from 0, in the order of [`CpuPlace`].
#[derive(Clone, Debug)]
pub struct CpuMap {
    /// By CPU number; `NO_SLOT` for CPUs that the map doesn't know.
    slots: Box<[u32]>,
    /// By slot.
    places: Box<[CpuPlace]>,
    /// By slot.
    cpus: Box<[CpuId]>,
}

const NO_SLOT: u32 = u32::MAX;

impl CpuMap {
    /// Numbers the CPUs. Without any it takes CPU 0.
    pub fn new(mut places: Vec<CpuPlace>) -> Self {
        if places.is_empty() {
            places.push(CpuPlace { node: 0, llc: 0, shard: 0, core: 0, cpu: CpuId::new(0) });
        }
        places.sort_unstable();
        let cpus: Box<[CpuId]> = places.iter().map(|place| place.cpu).collect();
        let last = cpus.iter().max().map_or(0, |cpu| cpu.index());
        let mut slots = vec![NO_SLOT; last + 1];
        for (slot, &cpu) in cpus.iter().enumerate() {
            slots[cpu.index()] = slot as u32;
        }
        Self { slots: slots.into(), places: places.into(), cpus }
    }

    /// How many slots there are, at least one.
    pub fn slots(&self) -> usize {
        self.cpus.len()
    }

    /// The slot of `cpu`, if it has one.
    pub fn known(&self, cpu: CpuId) -> Option<usize> {
        match self.slots.get(cpu.index()) {
            Some(&slot) if slot != NO_SLOT => Some(slot as usize),
            _ => None,
        }
    }

    /// The slot of `cpu`. A CPU that wasn't there when the map was made borrows another's; software queues take
    /// any number of pushers.
    #[inline]
    pub fn slot(&self, cpu: CpuId) -> usize {
        self.known(cpu).unwrap_or(cpu.index() % self.cpus.len())
    }

    /// The CPU of each slot.
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// The first slot of each hardware queue, rising from 0; each goes on to the next one's first. At most `room`
    /// of them.
    pub fn divide(&self, how: HwQueues, room: usize) -> Vec<usize> {
        let same = |a: &CpuPlace, b: &CpuPlace| match how {
            HwQueues::PerCpu | HwQueues::Count(_) => false,
            HwQueues::PerShard => (a.node, a.llc, a.shard) == (b.node, b.llc, b.shard),
            HwQueues::PerCache => (a.node, a.llc) == (b.node, b.llc),
            HwQueues::PerNode => a.node == b.node,
        };
        let groups: Vec<usize> = (0..self.places.len())
            .filter(|&slot| slot == 0 || !same(&self.places[slot - 1], &self.places[slot]))
            .collect();
        let wanted = if let HwQueues::Count(n) = how { n } else { groups.len() };
        let n = wanted.min(room).clamp(1, groups.len());
        (0..n).map(|h| groups[h * groups.len() / n]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(n: u32, per_llc: u32) -> CpuMap {
        // Numbered across the caches, as firmware likes to do.
        let llcs = n / per_llc;
        let place = |cpu| {
            let llc = cpu % llcs;
            CpuPlace { node: llc / 2, llc, shard: cpu / llcs / 2, core: cpu, cpu: CpuId::new(cpu) }
        };
        CpuMap::new((0..n).map(place).collect())
    }

    /// The CPUs of each hardware queue.
    fn groups(map: &CpuMap, how: HwQueues, room: usize) -> Vec<Vec<u32>> {
        let numbers = |cpus: &[CpuId]| cpus.iter().copied().map(CpuId::number).collect();
        let mut first = map.divide(how, room);
        first.push(map.slots());
        first.windows(2).map(|w| numbers(&map.cpus()[w[0]..w[1]])).collect()
    }

    #[test]
    fn a_hardware_queue_never_spans_two_caches_where_it_need_not() {
        let map = cpus(8, 4);
        assert_eq!(groups(&map, HwQueues::Count(2), 9), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(map.slot(CpuId::new(5)), 6);
    }

    #[test]
    fn hardware_queues_follow_cpus_shards_caches_and_nodes() {
        let map = cpus(16, 4);
        let sizes =
            |how| -> Vec<usize> { groups(&map, how, 99).iter().map(|group| group.len()).collect() };
        assert_eq!(sizes(HwQueues::PerCpu), [1; 16]);
        assert_eq!(sizes(HwQueues::PerShard), [2; 8]);
        assert_eq!(sizes(HwQueues::PerCache), [4; 4]);
        assert_eq!(sizes(HwQueues::PerNode), [8; 2]);
    }

    #[test]
    fn a_driver_with_less_room_gets_neighbours_and_no_cut_cache() {
        let map = cpus(16, 4);
        let sizes = |how, room| -> Vec<usize> {
            groups(&map, how, room).iter().map(|group| group.len()).collect()
        };
        assert_eq!(sizes(HwQueues::PerCache, 3), [4, 4, 8]);
        assert_eq!(sizes(HwQueues::PerShard, 1), [16]);
        assert_eq!(sizes(HwQueues::PerNode, 0), [16]);
    }

    #[test]
    fn every_cpu_has_one_place_and_the_queues_differ_by_one_cpu_at_most() {
        for n in 1..40 {
            for hw in 1..50 {
                let map = cpus(n, 1);
                let groups = groups(&map, HwQueues::Count(hw), 99);
                assert_eq!(groups.len(), hw.min(n as usize));
                let sizes = || groups.iter().map(Vec::len);
                assert_eq!(sizes().sum::<usize>(), n as usize);
                assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
                for cpu in 0..n {
                    assert_eq!(map.cpus()[map.slot(CpuId::new(cpu))], CpuId::new(cpu));
                }
            }
        }
    }

    #[test]
    fn an_unknown_cpu_and_a_machine_without_cpus_still_have_a_place() {
        assert_eq!(cpus(4, 4).slot(CpuId::new(1002)), 2);
        assert_eq!(cpus(4, 4).known(CpuId::new(1002)), None);
        let none = CpuMap::new(Vec::new());
        assert_eq!((none.slot(CpuId::new(3)), none.divide(HwQueues::Count(7), 9)), (0, vec![0]));
    }
}
