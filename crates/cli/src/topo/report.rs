//! The contents of `corewise topo`, in the form of its JSON.

use corewise::topology::{AffinityScope, Pods, ShardLayout, Topology};
use serde::{Serialize, Serializer};

/// The whole document.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// `live`, `sysfs:DIR`, `xml:FILE` or `synthetic:SPEC`.
    pub(super) source: String,
    pub(super) cpus: Vec<Cpu>,
    pub(super) nodes: Vec<Node>,
    /// Kinds of cores; empty if all cores are of one kind.
    pub(super) kinds: Vec<Kind>,
    pub(super) caches: Vec<Cache>,
    /// CPUs that this process may use, as a list such as `0-3,8`.
    pub(super) allowed: String,
    /// CPUs set apart from general work.
    pub(super) isolated: String,
    pub(super) cache_shard_size: u32,
    /// The pods of each scope, by its name, from the finest to the coarsest.
    #[serde(serialize_with = "as_map")]
    pub(super) scopes: Vec<(AffinityScope, Vec<Pod>)>,
}

/// One CPU. A `null` is unknown, as for a CPU that is offline.
#[derive(Debug, Serialize)]
pub(super) struct Cpu {
    pub(super) cpu: u32,
    pub(super) core: Option<u32>,
    pub(super) package: Option<u32>,
    pub(super) llc: Option<u32>,
    pub(super) node: Option<u32>,
    /// Cache below the last-level one that the CPU shares with its cluster.
    pub(super) cluster: Option<u32>,
    /// Index into `kinds`.
    pub(super) kind: Option<u32>,
    pub(super) online: bool,
}

/// One kind of cores.
#[derive(Debug, Serialize)]
pub(super) struct Kind {
    pub(super) kind: u32,
    pub(super) name: String,
    pub(super) cpus: String,
}

/// One NUMA node.
#[derive(Debug, Serialize)]
pub(super) struct Node {
    pub(super) node: u32,
    pub(super) cpus: String,
}

/// One last-level cache and its division.
#[derive(Debug, Serialize)]
pub(super) struct Cache {
    pub(super) llc: u32,
    /// Level, 3 for an L3; `null` if the machine reports no cache, and a package stands for it.
    pub(super) level: Option<u32>,
    /// First part of a cache that is divided along NUMA nodes; `null` for a whole cache.
    pub(super) part_of: Option<u32>,
    pub(super) cpus: String,
    pub(super) cores: u32,
    /// The cores of each shard.
    pub(super) shards: Vec<u32>,
}

/// One pod.
#[derive(Debug, Serialize)]
pub(super) struct Pod {
    pub(super) pod: u32,
    pub(super) cpus: String,
    pub(super) node: Option<u32>,
}

impl Report {
    pub(super) fn new(topology: &Topology, pods: &Pods) -> Report {
        let cpus = topology.cpus().iter().map(|cpu| Cpu {
            cpu: cpu.cpu.number(),
            core: cpu.core,
            package: cpu.package,
            llc: cpu.llc,
            node: cpu.node,
            cluster: cpu.cluster,
            kind: cpu.kind,
            online: cpu.online,
        });
        let nodes = topology.nodes().iter();
        let kinds = topology.kinds().iter().map(|kind| Kind {
            kind: kind.kind,
            name: kind.name.clone(),
            cpus: kind.cpus.to_string(),
        });
        let scopes = AffinityScope::ALL.into_iter().map(|scope| {
            let pods = pods.scope(scope).iter();
            let pod = |pod: &corewise::topology::Pod| Pod {
                pod: pod.pod,
                cpus: pod.cpus.to_string(),
                node: pod.node,
            };
            (scope, pods.map(pod).collect())
        });
        Report {
            source: topology.source().to_string(),
            cpus: cpus.collect(),
            nodes: nodes.map(|n| Node { node: n.node, cpus: n.cpus.to_string() }).collect(),
            kinds: kinds.collect(),
            caches: caches(topology, pods),
            allowed: topology.allowed().to_string(),
            isolated: topology.isolated().to_string(),
            cache_shard_size: pods.shard_size(),
            scopes: scopes.collect(),
        }
    }
}

/// Returns the caches restricted to the CPUs that this process may use: its pods are made of these.
fn caches(topology: &Topology, pods: &Pods) -> Vec<Cache> {
    let cache = |(llc, layout): (u32, &ShardLayout)| {
        let facts = topology.llcs().get(llc as usize)?;
        Some(Cache {
            llc,
            level: facts.level,
            part_of: facts.part_of,
            cpus: facts.cpus.intersection(topology.allowed()).to_string(),
            cores: layout.cores(),
            shards: layout.shards().to_vec(),
        })
    };
    pods.shard_layouts().filter_map(cache).collect()
}

fn as_map<S: Serializer>(
    scopes: &[(AffinityScope, Vec<Pod>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(scopes.iter().map(|(scope, pods)| (scope.name(), pods)))
}
