//! Pods: the groups of CPUs that each affinity scope divides a machine into.

use std::collections::BTreeMap;

use crate::cpuset::{CpuId, CpuSet};
use crate::scope::AffinityScope;
use crate::shard::{ShardLayout, clustered_layout, shard_layout};
use crate::topology::{Cpu, Topology};

/// One group of CPUs of a scope, which one worker pool serves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pod {
    /// Number within its scope: an index into [`Pods::scope`].
    pub pod: u32,
    /// CPUs of the pod, online or not. Never empty.
    pub cpus: CpuSet,
    /// NUMA node of all its CPUs; `None` if they are in several, or it isn't known.
    pub node: Option<u32>,
}

/// The pods of every scope of a machine.
///
/// # Which CPUs
/// Pods consist of the CPUs that were [allowed](Topology::allowed) when the topology was made,
/// **online or not**, and are computed once. If a CPU goes offline, or a cpuset takes it away
/// later, pods and their numbers stay as they are. Only the usable subset of a pod shrinks
/// ([`Machine::online`](crate::Machine::online)), perhaps to nothing.
///
/// CPUs that never were allowed are in no pod. The kernel, which owns the whole machine, computes
/// pods over all possible CPUs. A process in a cpuset of 12 of 72 cores would then get up to nine
/// pods with one or two usable cores each, although a shard is meant to have about eight. For the
/// same reason the cores of a shard are counted by the lowest *allowed* SMT sibling. By the lowest
/// of the whole core, a core whose first sibling the cpuset hides would not count at all.
///
/// # Numbers
/// Pods are numbered densely from 0 by their lowest CPU, as in the kernel. Pods of offline CPUs
/// without known facts come last.
///
/// ```
/// use corewise_topology::{AffinityScope, CpuId, Pods, Topology};
///
/// let pods = Pods::new(&Topology::synthetic("numa:2 l3:1 core:36 pu:2")?, 8);
/// let shards = pods.scope(AffinityScope::CacheShard);
/// assert_eq!(shards.len(), 10);
/// assert_eq!(shards[0].cpus.to_string(), "0-15"); // 8 cores with their siblings
/// assert_eq!(pods.pod_of(AffinityScope::Numa, CpuId::new(100)), Some(1));
/// # Ok::<(), corewise_topology::TopologyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    shard_size: u32,
    shard_size_was_zero: bool,
    scopes: [ScopePods; AffinityScope::ALL.len()],
    /// Layout of each last-level cache, by rising number.
    layouts: Vec<(u32, ShardLayout)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ScopePods {
    pods: Vec<Pod>,
    /// Pod of each CPU number, or [`NO_POD`].
    of_cpu: Vec<u32>,
}

const NO_POD: u32 = u32::MAX;

impl Pods {
    /// Divides the machine's allowed CPUs into the pods of every scope, with cache shards of about
    /// `shard_size` cores ([`shard_layout`]). Each last-level cache is divided by itself, and
    /// siblings of a core are never in different shards.
    ///
    /// The layout departs from the kernel's in three points. The last two change nothing on a
    /// machine of one kind of cores with private L2s:
    ///
    /// - No shard has one core if its cache has more of its kind, whatever the size.
    /// - No shard cuts a [cluster](Cpu::cluster) of cores that share a lower cache, such as four
    ///   efficient cores of a hybrid CPU and their L2. One shard has all allowed cores of the
    ///   cluster. Each cut of the plain layout moves to the nearest border between clusters. So a
    ///   shard is at least as large as a cluster, and may be larger than `shard_size`.
    /// - No shard mixes [kinds](Topology::kinds) of cores: by chance, a pool's work could be as
    ///   slow as on the slow cores. Each kind is divided by itself, so a kind with few cores has a
    ///   small shard.
    ///
    /// A `shard_size` of 0 becomes 1; [`Pods::shard_size_was_zero`] tells, so that the caller can
    /// warn.
    pub fn new(topology: &Topology, shard_size: u32) -> Pods {
        let members: Vec<&Cpu> =
            topology.cpus().iter().filter(|cpu| topology.allowed().contains(cpu.cpu)).collect();
        let (shards, layouts) = shards(&members, shard_size);
        let scopes = AffinityScope::ALL.map(|scope| {
            let pods = match scope {
                AffinityScope::Cpu => group(&members, &|cpu| Some(cpu.cpu.number())),
                AffinityScope::Smt => group(&members, &|cpu| cpu.core),
                AffinityScope::Cache => group(&members, &|cpu| cpu.llc),
                AffinityScope::CacheShard => group(&members, &|cpu| shards[cpu.cpu.index()]),
                // CPUs without a node have no known place, so they are one group.
                AffinityScope::Numa => group(&members, &|cpu| Some(after_none(cpu.node))),
                AffinityScope::System => group(&members, &|_| Some(0)),
            };
            ScopePods::new(topology, pods)
        });
        let effective = shard_layout(0, shard_size);
        Pods {
            shard_size: effective.size(),
            shard_size_was_zero: effective.size_was_zero(),
            scopes,
            layouts,
        }
    }

    /// Returns the pods of a scope; a pod's number is its index.
    pub fn scope(&self, scope: AffinityScope) -> &[Pod] {
        &self.scopes[scope as usize].pods
    }

    /// Returns the pod of a scope that a CPU is in, or `None` if there is no such CPU, or it never
    /// was allowed.
    pub fn pod_of(&self, scope: AffinityScope, cpu: CpuId) -> Option<u32> {
        let pod = self.scopes[scope as usize].of_cpu.get(cpu.index()).copied();
        pod.filter(|&pod| pod != NO_POD)
    }

    /// Returns the intended shard size in cores; at least 1.
    pub fn shard_size(&self) -> u32 {
        self.shard_size
    }

    /// Returns true if a shard size of 0 was given, and 1 taken instead.
    pub fn shard_size_was_zero(&self) -> bool {
        self.shard_size_was_zero
    }

    /// Returns the division of the allowed cores of each last-level cache: the cache's number (an
    /// index into [`Topology::llcs`]) and its layout, by rising number. Caches without an allowed
    /// CPU are left out.
    pub fn shard_layouts(&self) -> impl Iterator<Item = (u32, &ShardLayout)> {
        self.layouts.iter().map(|(llc, layout)| (*llc, layout))
    }
}

impl ScopePods {
    fn new(topology: &Topology, groups: Vec<CpuSet>) -> ScopePods {
        let highest = groups.iter().filter_map(CpuSet::last).max();
        let mut of_cpu = vec![NO_POD; highest.map_or(0, |cpu| cpu.index() + 1)];
        let pods = groups.into_iter().zip(0..).map(|(cpus, pod)| {
            let mut nodes = cpus.iter().map(|cpu| topology.cpu(cpu).and_then(|cpu| cpu.node));
            let first = nodes.next().flatten();
            let node = first.filter(|_| nodes.all(|node| node == first));
            for cpu in &cpus {
                of_cpu[cpu.index()] = pod;
            }
            Pod { pod, cpus, node }
        });
        let pods = pods.collect();
        ScopePods { pods, of_cpu }
    }
}

/// Groups CPUs by key, in the order of the lowest CPU. CPUs without a key are alone, and come last.
fn group(members: &[&Cpu], key: &dyn Fn(&Cpu) -> Option<u32>) -> Vec<CpuSet> {
    let mut groups: Vec<CpuSet> = Vec::new();
    let mut numbers = BTreeMap::new();
    let mut alone = Vec::new();
    for cpu in members {
        let Some(key) = key(cpu) else {
            alone.push(CpuSet::from_iter([cpu.cpu]));
            continue;
        };
        let number = *numbers.entry(key).or_insert(groups.len());
        if number == groups.len() {
            groups.push(CpuSet::new());
        }
        groups[number].insert(cpu.cpu);
    }
    groups.append(&mut alone);
    groups
}

/// Returns a number that is a key of its own for `None`.
fn after_none(number: Option<u32>) -> u32 {
    number.map_or(0, |number| number + 1)
}

/// Returns the shard of each CPU number, in a count through all caches, and the layout of each
/// cache. A CPU whose cache isn't known has no shard.
fn shards(members: &[&Cpu], size: u32) -> (Vec<Option<u32>>, Vec<(u32, ShardLayout)>) {
    let mut caches: Vec<Vec<&Cpu>> = Vec::new();
    for cpu in members {
        if let Some(llc) = cpu.llc {
            let llc = llc as usize;
            caches.resize_with(caches.len().max(llc + 1), Vec::new);
            caches[llc].push(cpu);
        }
    }
    let mut shard_of = vec![None; members.last().map_or(0, |cpu| cpu.cpu.index() + 1)];
    let mut layouts = Vec::new();
    let mut numbers = 0..;
    for (llc, cpus) in (0..).zip(caches).filter(|(_, cpus)| !cpus.is_empty()) {
        // Clusters of each kind in the order of their lowest CPU, and the cores of each cluster.
        // The lowest allowed thread of a core leads it: its siblings follow it, whatever their
        // numbers.
        let of = |set: &CpuSet| -> Vec<&Cpu> {
            cpus.iter().copied().filter(|cpu| set.contains(cpu.cpu)).collect()
        };
        let kinds: Vec<Vec<Vec<CpuSet>>> = group(&cpus, &|cpu| Some(after_none(cpu.kind)))
            .iter()
            .map(|kind| {
                let cores = group(&of(kind), &|cpu| cpu.core);
                clusters(cores, &cpus)
            })
            .collect();
        let sizes =
            |kind: &Vec<Vec<CpuSet>>| kind.iter().map(|cluster| cluster.len() as u32).collect();
        let layout = clustered_layout(&kinds.iter().map(sizes).collect::<Vec<_>>(), size);
        let mut cores = kinds.iter().flatten().flatten();
        for (&room, shard) in layout.shards().iter().zip(&mut numbers) {
            for cpu in cores.by_ref().take(room as usize).flatten() {
                shard_of[cpu.index()] = Some(shard);
            }
        }
        debug_assert!(cores.next().is_none(), "the layout has a place for each core");
        layouts.push((llc, layout));
    }
    (shard_of, layouts)
}

/// Groups cores by the lower cache that they share, in the order of the first core. A core without
/// a known cluster is alone.
fn clusters(cores: Vec<CpuSet>, cpus: &[&Cpu]) -> Vec<Vec<CpuSet>> {
    let cluster_of = |leader| {
        let at = cpus.binary_search_by_key(&leader, |cpu| cpu.cpu).ok()?;
        cpus[at].cluster
    };
    let mut clusters: Vec<Vec<CpuSet>> = Vec::new();
    let mut numbers = BTreeMap::new();
    for core in cores {
        let number = match core.first().and_then(cluster_of) {
            Some(cluster) => *numbers.entry(cluster).or_insert(clusters.len()),
            None => clusters.len(),
        };
        match clusters.get_mut(number) {
            Some(cluster) => cluster.push(core),
            None => clusters.push(vec![core]),
        }
    }
    clusters
}
