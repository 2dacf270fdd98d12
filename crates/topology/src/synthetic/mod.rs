//! The builder of a topology from a description in hwloc's synthetic language.
//!
//! [`parse`](parse::parse) turns the text into levels; this file walks the tree that they describe.
//! The language is that of the hwloc manual, "Synthetic topologies".

mod indexes;
mod parse;

use std::ops::Range;

use crate::cpuset::{CpuId, CpuSet};
use crate::error::TopologyError;
use crate::facts::{CLUSTER_LEVEL, Key, RawCpu, RawMachine};
use crate::topology::{Source, Topology};
use parse::{Description, Kind, Level, parse};

impl Topology {
    /// Builds a machine from a description in hwloc's synthetic language: levels from the outermost
    /// to the innermost, each `type:count`, the last one `pu`. If the description has none, package
    /// 0 and node 0 are added. CPUs are numbered in the order of the tree, so SMT siblings are
    /// adjacent, unless `indexes=` says otherwise. Each CPU is online and allowed.
    ///
    /// Types are written in any case, in full or shortened to two letters or more. They are
    /// `numanode` (also `node`), `package` (also `socket`), `die`, `group`, `tile`, `module`,
    /// `l1`..`l5` (also as `l2u`, `l1d`, `l1i`, with or without `cache`), `core`, `pu`. A
    /// description of bare numbers (`2 3 4 5 6`) gets hwloc's usual types. `[numa]` attaches one
    /// NUMA node to each object of the level before it. Attributes (`l3:2(size=32MB)`) are checked
    /// and, as they say nothing about placement, not kept.
    ///
    /// The attribute `indexes=` gives the objects of a level their numbers, all of them in the
    /// whole machine, in the order of the tree. It counts for `pu` and for NUMA nodes; on other
    /// levels it is only checked. Its forms are
    ///
    /// - a list: `core:2 pu:2(indexes=0,2,1,3)`;
    /// - an interleaving by types, the fastest first: `numa:2 core:12 pu:2(indexes=core)` numbers
    ///   the first threads of all cores, then the second ones, as most x86 servers do;
    /// - the same in numbers, `step*count`: `(indexes=2*24:1*2)`.
    ///
    /// If an `indexes=` doesn't fit, hwloc warns and continues without it; here it is an error.
    ///
    /// Source: the hwloc manual, "Synthetic topologies".
    ///
    /// # Errors
    /// [`TopologyError::Synthetic`], which names the token and its position.
    pub fn synthetic(description: &str) -> Result<Topology, TopologyError> {
        let Description { levels, cpus, nodes } = parse(description)?;
        let mut walk =
            Walk { levels: &levels, cpus: Vec::new(), nodes: Vec::new(), path: Vec::new() };
        walk.object(0);
        let Walk { cpus: mut raw, nodes: local, .. } = walk;
        for (cpu, place) in raw.iter_mut().zip(0..) {
            cpu.cpu = CpuId::new(cpus.as_ref().map_or(place, |cpus| cpus[place as usize]));
        }
        let nodes = nodes.unwrap_or_else(|| (0..local.len() as u32).collect());
        // A CPU's own node is the innermost one and, of several around the same CPUs, the lowest:
        // hwloc orders them so.
        let mut inner_first: Vec<_> = nodes.iter().zip(local).collect();
        inner_first.sort_unstable_by_key(|(node, local)| (local.len(), **node));
        for (node, local) in inner_first {
            for cpu in &mut raw[local] {
                cpu.node.get_or_insert(*node);
            }
        }
        let raw = RawMachine { cpus: raw, nodes, isolated: CpuSet::new() };
        raw.into_topology(Source::Synthetic(description.trim().to_owned()))
    }
}

/// A walk through the tree, depth first. Level 0 is the machine itself. CPUs and nodes get numbers
/// in the order of the walk; numbers of `indexes=` are applied later.
struct Walk<'a> {
    levels: &'a [Level],
    cpus: Vec<RawCpu>,
    /// Range of CPUs of each node.
    nodes: Vec<Range<usize>>,
    /// Index of the current object within its parent, for each level down to the current one. The
    /// first indexes, up to a level, identify the object of that level.
    path: Vec<i64>,
}

impl Walk<'_> {
    /// Visits one object of the level `depth` and everything below it.
    fn object(&mut self, depth: usize) {
        let level = &self.levels[depth];
        let first_cpu = self.cpus.len();
        if level.kind == Kind::Pu {
            self.processing_unit();
        }
        if let Some(below) = self.levels.get(depth + 1) {
            for index in 0..below.count {
                self.path.push(i64::from(index));
                self.object(depth + 1);
                self.path.pop();
            }
        }
        // As in hwloc, inner nodes are numbered before outer ones.
        for _ in 0..level.numa {
            self.nodes.push(first_cpu..self.cpus.len());
        }
    }

    fn processing_unit(&mut self) {
        // The end of `path` belongs to this unit (level `path.len()`), its start to level 1.
        let object = |depth: usize| Key::Ids(self.path[..depth].to_vec());
        let depth_of = |wanted: Kind| self.levels.iter().position(|level| level.kind == wanted);
        let caches = self.levels.iter().enumerate().filter_map(|(depth, level)| match level.kind {
            Kind::Cache { level } => Some((level, depth)),
            _ => None,
        });
        let cache = caches.clone().max();
        let below = caches.filter(|&below| Some(below) < cache).max();
        let below = below.filter(|&(level, _)| level >= CLUSTER_LEVEL);
        self.cpus.push(RawCpu {
            cpu: CpuId::new(self.cpus.len() as u32),
            core: Some(object(depth_of(Kind::Core).unwrap_or(self.path.len()))),
            package: Some(object(depth_of(Kind::Package).unwrap_or(0))),
            cache: cache.map(|(level, depth)| (level, object(depth))),
            cluster: below.map(|(_, depth)| object(depth)),
            kind: None,
            node: None,
            online: true,
        });
    }
}
