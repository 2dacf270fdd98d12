//! Conversion of raw facts, as each source reports them, to the one [`Topology`] with its dense
//! numbers.

use std::collections::BTreeMap;
use std::mem;

use crate::cpuset::{CpuId, CpuSet};
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
    /// source doesn't report, by the rules in the documentation of [`Topology`].
    pub(crate) fn into_topology(mut self, source: Source) -> Result<Topology, TopologyError> {
        if self.cpus.is_empty() {
            return Err(TopologyError::NoCpu { reason: format!("{source} has no CPU") });
        }
        self.sort();
        self.fill_nodes();
        let kinds = self.kinds();
        let kind_of = |cpu| kinds.iter().find(|kind| kind.cpus.contains(cpu)).map(|kind| kind.kind);

        let mut packages = Numbers::default();
        // Flags: a CPU of that package reports a cache.
        let mut cached: Vec<bool> = Vec::new();
        for raw in &self.cpus {
            let Some(key) = &raw.package else { continue };
            let package = packages.number(key, None, None) as usize;
            if package == cached.len() {
                cached.push(false);
            }
            cached[package] |= raw.cache.is_some();
        }

        let mut cores = Numbers::default();
        let mut caches = Numbers::default();
        let mut clusters = Numbers::default();
        let mut hardware_caches = Numbers::default();
        // The first part of each cache of the hardware, which may be in several nodes.
        let mut first_parts: Vec<u32> = Vec::new();
        let mut llcs: Vec<Llc> = Vec::new();
        let mut cpus = Vec::with_capacity(self.cpus.len());
        for raw in &self.cpus {
            let package = raw.package.as_ref().map(|key| packages.number(key, None, None));
            let cache = match (&raw.cache, &raw.package, package) {
                (Some((level, key)), ..) => Some((key, Some(*level))),
                // An offline CPU reports no cache, but has one if its neighbours have.
                (None, _, Some(package)) if !raw.online && cached[package as usize] => None,
                (None, package, _) => package.as_ref().map(|key| (key, None)),
            };
            let llc = cache.map(|(key, level)| {
                let llc = caches.number(key, level, raw.node);
                if llc as usize == llcs.len() {
                    llcs.push(Llc { llc, level, cpus: CpuSet::new(), part_of: None });
                    if level.is_some() {
                        let whole = hardware_caches.number(key, level, None) as usize;
                        if whole == first_parts.len() {
                            first_parts.push(llc);
                        } else {
                            let first = first_parts[whole];
                            llcs[first as usize].part_of = Some(first);
                            llcs[llc as usize].part_of = Some(first);
                        }
                    }
                }
                llcs[llc as usize].cpus.insert(raw.cpu);
                llc
            });
            cpus.push(Cpu {
                cpu: raw.cpu,
                core: raw.core.as_ref().map(|key| cores.number(key, None, None)),
                package,
                llc,
                cluster: raw.cluster.as_ref().map(|key| clusters.number(key, None, raw.node)),
                kind: kind_of(raw.cpu),
                node: raw.node,
                online: raw.online,
            });
        }

        let node = |&node: &u32| Node { node, cpus: CpuSet::new() };
        let mut nodes: Vec<Node> = self.nodes.iter().map(node).collect();
        for cpu in &cpus {
            let at = cpu.node.and_then(|node| self.nodes.binary_search(&node).ok());
            if let Some(at) = at {
                nodes[at].cpus.insert(cpu.cpu);
            }
        }
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
        let mut kinds: Vec<CoreKind> = Vec::new();
        for raw in &self.cpus {
            let Some(name) = raw.kind.as_ref().map(name) else { continue };
            let known = kinds.iter().position(|kind| kind.name == name);
            let kind = known.unwrap_or(kinds.len());
            if kind == kinds.len() {
                kinds.push(CoreKind { kind: kind as u32, name, cpus: CpuSet::new() });
            }
            kinds[kind].cpus.insert(raw.cpu);
        }
        if kinds.len() < 2 { Vec::new() } else { kinds }
    }

    /// Sorts the CPUs by number. Of several reports about one CPU, the first counts.
    fn sort(&mut self) {
        let mut by_number: Vec<Option<RawCpu>> = Vec::new();
        for raw in mem::take(&mut self.cpus) {
            let number = raw.cpu.index();
            if by_number.len() <= number {
                by_number.resize(number + 1, None);
            }
            by_number[number].get_or_insert(raw);
        }
        self.cpus = by_number.into_iter().flatten().collect();
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

/// A map that numbers objects densely in the order in which they are first seen. Objects differ by
/// key, level or node; where one of these doesn't matter it is `None`. One type of map serves all
/// objects, since each type that a map is made for lengthens a user's build.
#[derive(Default)]
struct Numbers(BTreeMap<(Key, Option<u32>, Option<u32>), u32>);

impl Numbers {
    fn number(&mut self, key: &Key, level: Option<u32>, node: Option<u32>) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry((key.clone(), level, node)).or_insert(next)
    }
}
