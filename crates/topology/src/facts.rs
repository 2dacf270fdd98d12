//! Conversion of raw facts, as each source reports them, to the one [`Topology`] with its dense
//! numbers.

use crate::cpuset::CpuId;
use std::collections::{BTreeMap, BTreeSet};

use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::topology::{CoreKind, Cpu, Llc, Node, Source, Topology};

/// The lowest level at which cores share a cache: an L1 is a core's own.
pub(crate) const CLUSTER_LEVEL: u32 = 2;

/// The facts that a source reports about one CPU. Two CPUs are in the same core, package or cache
/// if their keys are equal; the source chooses the keys.
#[derive(Clone, Debug)]
pub(crate) struct RawCpu {
    pub(crate) cpu: CpuId,
    pub(crate) core: Option<Key>,
    pub(crate) package: Option<Key>,
    /// Last-level cache: its level and its key.
    pub(crate) cache: Option<(u32, Key)>,
    /// Cache at the next lower known level, if that is an L2 or higher.
    pub(crate) cluster: Option<Key>,
    pub(crate) kind: Option<RawKind>,
    pub(crate) node: Option<u32>,
    pub(crate) online: bool,
}

/// A source's report about the kind of a CPU's core.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RawKind {
    /// The name of the kind.
    Name(String),
    /// The core's speed. The fastest core of the machine has 1024.
    Capacity(u32),
}

/// The identity of a core, package or cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A key that is the lowest CPU that shares the object.
    Lowest(CpuId),
    /// A key of numbers of the firmware or of the description.
    Ids(Vec<i64>),
}

/// A source's whole report.
#[derive(Clone, Debug)]
pub(crate) struct RawMachine {
    pub(crate) cpus: Vec<RawCpu>,
    /// Nodes with or without CPUs; empty if the source knows none.
    pub(crate) nodes: Vec<u32>,
    pub(crate) isolated: CpuSet,
}

impl RawMachine {
    /// Gives cores, packages and caches dense numbers, by their lowest CPU. Fills in facts that the
    ///  source doesn't report, by the rules in the documentation of [`Topology`].
    pub(crate) fn into_topology(mut self, source: Source) -> Result<Topology, TopologyError> {
        if self.cpus.is_empty() {
            return Err(TopologyError::NoCpu { reason: format!("{source} has no CPU") });
        }
        self.cpus.sort_by_key(|raw| raw.cpu);
        self.cpus.dedup_by_key(|raw| raw.cpu);
        self.fill_nodes();
        let kinds = self.kinds();
        let kind_of: BTreeMap<CpuId, u32> =
            kinds.iter().flat_map(|kind| kind.cpus.iter().map(|cpu| (cpu, kind.kind))).collect();

        let cached: BTreeSet<Key> = self
            .cpus
            .iter()
            .filter(|raw| raw.cache.is_some())
            .filter_map(|raw| raw.package.clone())
            .collect();
        let mut cores = Dense::default();
        let mut packages = Dense::default();
        let mut caches = Dense::default();
        let mut clusters = Dense::default();
        let mut llcs: Vec<Llc> = Vec::new();
        let mut cpus = Vec::with_capacity(self.cpus.len());
        for raw in &self.cpus {
            let cache = match (&raw.cache, &raw.package) {
                (Some((level, key)), _) => Some((Some(*level), key.clone(), raw.node)),
                // An offline CPU reports no cache, but has one if its neighbours have.
                (None, Some(package)) if !raw.online && cached.contains(package) => None,
                (None, Some(package)) => Some((None, package.clone(), raw.node)),
                (None, None) => None,
            };
            let level = cache.as_ref().and_then(|(level, ..)| *level);
            let llc = cache.map(|key| caches.number(key));
            if let Some(llc) = llc {
                if llc as usize == llcs.len() {
                    llcs.push(Llc { llc, level, cpus: CpuSet::new(), part_of: None });
                }
                llcs[llc as usize].cpus.insert(raw.cpu);
            }
            cpus.push(Cpu {
                cpu: raw.cpu,
                core: raw.core.clone().map(|key| cores.number(key)),
                package: raw.package.clone().map(|key| packages.number(key)),
                llc,
                cluster: raw.cluster.clone().map(|key| clusters.number((key, raw.node))),
                kind: kind_of.get(&raw.cpu).copied(),
                node: raw.node,
                online: raw.online,
            });
        }

        // A cache of the hardware that is in several nodes.
        let mut parts: BTreeMap<(u32, Key), Vec<u32>> = BTreeMap::new();
        for ((level, key, _), llc) in caches.0 {
            if let Some(level) = level {
                parts.entry((level, key)).or_default().push(llc);
            }
        }
        for parts in parts.values().filter(|parts| parts.len() > 1) {
            for &part in parts {
                llcs[part as usize].part_of = parts.iter().min().copied();
            }
        }

        let mut of_node: BTreeMap<u32, CpuSet> =
            self.nodes.iter().map(|&node| (node, CpuSet::new())).collect();
        for cpu in &cpus {
            if let Some(node) = cpu.node {
                of_node.entry(node).or_default().insert(cpu.cpu);
            }
        }
        let nodes = of_node.into_iter().map(|(node, cpus)| Node { node, cpus }).collect();
        let all: CpuSet = cpus.iter().map(|cpu| cpu.cpu).collect();
        let isolated = self.isolated.intersection(&all);
        Ok(Topology { source, cpus, nodes, llcs, kinds, allowed: all, isolated })
    }

    /// Returns the kinds of cores, by their lowest CPU. If all known kinds are the same, returns
    /// none.
    fn kinds(&self) -> Vec<CoreKind> {
        // The highest clocks of equal cores differ a little. The kernel's scheduler treats
        // capacities as different only if they differ by more than this (`capacity_greater` in
        // fair.c).
        let differ = |low: u32, high: u32| u64::from(high) * 1024 > u64::from(low) * 1078;
        let mut capacities: Vec<u32> = self
            .cpus
            .iter()
            .filter_map(|raw| match raw.kind {
                Some(RawKind::Capacity(capacity)) => Some(capacity),
                _ => None,
            })
            .collect();
        capacities.sort_unstable();
        // Lowest capacity of each kind.
        capacities.dedup_by(|next, first| !differ(*first, *next));
        let name = |kind: &RawKind| match kind {
            RawKind::Name(name) => name.clone(),
            RawKind::Capacity(capacity) => {
                let of = capacities.partition_point(|lowest| lowest <= capacity);
                format!("capacity {}", capacities[of - 1])
            }
        };
        let mut numbers = Dense::default();
        let mut kinds: Vec<CoreKind> = Vec::new();
        for raw in &self.cpus {
            let Some(name) = raw.kind.as_ref().map(name) else { continue };
            let kind = numbers.number(name.clone());
            if kind as usize == kinds.len() {
                kinds.push(CoreKind { kind, name, cpus: CpuSet::new() });
            }
            kinds[kind as usize].cpus.insert(raw.cpu);
        }
        if kinds.len() < 2 { Vec::new() } else { kinds }
    }

    fn fill_nodes(&mut self) {
        self.nodes.extend(self.cpus.iter().filter_map(|raw| raw.node));
        self.nodes.sort_unstable();
        self.nodes.dedup();
        if self.nodes.is_empty() {
            self.nodes.push(0);
        }
        if let [only] = self.nodes[..] {
            for raw in &mut self.cpus {
                raw.node = Some(only);
            }
        }
    }
}

/// A map that numbers keys densely in the order in which they are first seen.
struct Dense<K>(BTreeMap<K, u32>);

impl<K> Default for Dense<K> {
    fn default() -> Self {
        Dense(BTreeMap::new())
    }
}

impl<K: Ord> Dense<K> {
    fn number(&mut self, key: K) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(key).or_insert(next)
    }
}
