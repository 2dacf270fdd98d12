//! From raw facts, as each source reports them, to the one [`Topology`] with its dense numbers.

use crate::cpu_id::CpuId;
use std::collections::{BTreeMap, BTreeSet};

use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::topology::{Cpu, Llc, Node, Source, Topology};

/// What a source says about one CPU. Two CPUs are in the same core, package or cache if their keys
/// are equal; what the keys are is the source's business.
#[derive(Clone, Debug)]
pub(crate) struct RawCpu {
    pub(crate) cpu: CpuId,
    pub(crate) core: Option<Key>,
    pub(crate) package: Option<Key>,
    /// The last-level cache: its level and which one it is.
    pub(crate) cache: Option<(u32, Key)>,
    pub(crate) node: Option<u32>,
    pub(crate) online: bool,
}

/// The identity of a core, package or cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Known by the lowest CPU that shares it.
    Lowest(CpuId),
    /// Known by numbers of the firmware or of the description.
    Ids(Vec<i64>),
}

/// A source's whole report.
#[derive(Clone, Debug)]
pub(crate) struct RawMachine {
    pub(crate) cpus: Vec<RawCpu>,
    /// The nodes that there are, with or without CPUs; empty where the source knows none.
    pub(crate) nodes: Vec<u32>,
    pub(crate) isolated: CpuSet,
}

impl RawMachine {
    /// Numbers cores, packages and caches densely in the order of their lowest CPU, and fills in
    /// what the source doesn't report, by the rules in the documentation of [`Topology`].
    pub(crate) fn into_topology(mut self, source: Source) -> Result<Topology, TopologyError> {
        if self.cpus.is_empty() {
            return Err(TopologyError::NoCpu { reason: format!("{source} has no CPU") });
        }
        self.cpus.sort_by_key(|raw| raw.cpu);
        self.cpus.dedup_by_key(|raw| raw.cpu);
        self.fill_nodes();

        let cached: BTreeSet<Key> = self
            .cpus
            .iter()
            .filter(|raw| raw.cache.is_some())
            .filter_map(|raw| raw.package.clone())
            .collect();
        let mut cores = Dense::default();
        let mut packages = Dense::default();
        let mut caches = Dense::default();
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
                    llcs.push(Llc { llc, level, cpus: CpuSet::new() });
                }
                llcs[llc as usize].cpus.insert(raw.cpu);
            }
            cpus.push(Cpu {
                cpu: raw.cpu,
                core: raw.core.clone().map(|key| cores.number(key)),
                package: raw.package.clone().map(|key| packages.number(key)),
                llc,
                node: raw.node,
                online: raw.online,
            });
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
        Ok(Topology { source, cpus, nodes, llcs, allowed: all, isolated })
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

/// Gives out dense numbers in the order in which keys are first seen.
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
