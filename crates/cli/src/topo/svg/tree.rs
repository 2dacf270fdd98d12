//! The machine as boxes within boxes: packages and nodes, caches, shards, cores, CPUs; and the box
//! of each pod of a scope.

use std::collections::BTreeMap;

use corewise::topology::{AffinityScope, Cpu, CpuId, CpuSet, Pods, Topology};

/// A box, which holds other boxes or cores.
#[derive(Debug)]
pub(super) struct Area {
    /// Names, the outermost first: one box may be both a package and a node.
    pub(super) names: Vec<String>,
    /// All CPUs in the box, in any state.
    pub(super) cpus: CpuSet,
    /// Pod that consists of its allowed CPUs, unless a smaller box shows that pod.
    pub(super) pod: Option<u32>,
    pub(super) inside: Inside,
}

/// Contents of a box.
#[derive(Debug)]
pub(super) enum Inside {
    Areas(Vec<Area>),
    Cores(Vec<Core>),
}

/// The SMT siblings of a core. A CPU without known siblings stands alone.
#[derive(Debug)]
pub(super) struct Core {
    /// CPUs by rising number.
    pub(super) cpus: Vec<CpuId>,
    /// Pod of the core alone, unless a box shows it.
    pub(super) pod: Option<u32>,
    /// Pod of each of its CPUs, in scope `cpu`.
    pub(super) cpu_pods: Vec<Option<u32>>,
}

/// The whole picture.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: Area,
    /// Pods whose CPUs fill no box. Only their colour and a line of text show them.
    pub(super) scattered: Vec<u32>,
}

/// A key by which CPUs are put into boxes. Keys are applied from the outside in.
type Level<'a> = (&'static str, Box<dyn Fn(&Cpu) -> Option<u32> + 'a>);

impl Tree {
    pub(super) fn new(topology: &Topology, pods: &Pods, scope: AffinityScope) -> Tree {
        let cpus: Vec<&Cpu> = topology.cpus().iter().collect();
        let levels = levels(topology, pods);
        let mut root = area(Vec::new(), &cpus, &levels, topology);
        name_caches(&mut root, topology);
        if scope == AffinityScope::CacheShard {
            // Shards are the pods here, and the pod's number names the shard.
            drop_names(&mut root, "shard ");
        }
        let mut scattered = Vec::new();
        for pod in pods.scope(scope) {
            if !root.show(pod.pod, &pod.cpus, topology.allowed(), scope) {
                scattered.push(pod.pod);
            }
        }
        Tree { root, scattered }
    }
}

/// Returns the levels of boxes, each nested in the one before. Nodes and caches are always one box.
/// A package is a box if it contains its nodes or lies within one.
fn levels<'a>(topology: &'a Topology, pods: &'a Pods) -> Vec<Level<'a>> {
    let mut packages_of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut nodes_of: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for cpu in topology.cpus() {
        if let (Some(node), Some(package)) = (cpu.node, cpu.package) {
            packages_of.entry(node).or_default().push(package);
            nodes_of.entry(package).or_default().push(node);
        }
    }
    for of in [&mut packages_of, &mut nodes_of] {
        for list in of.values_mut() {
            list.sort_unstable();
            list.dedup();
        }
    }
    let alone = |of: &BTreeMap<u32, Vec<u32>>| of.values().all(|list| list.len() == 1);
    let node: Level<'a> = ("node", Box::new(|cpu| cpu.node));
    // The package of a cache is that of its first CPU, and the package of an offline CPU that of
    // its node.
    let outer = alone(&packages_of);
    let package: Level<'a> = (
        "package",
        Box::new(move |cpu| {
            let of_cache = || {
                let cache = topology.llcs().get(cpu.llc? as usize)?;
                topology.cpu(cache.cpus.first()?)?.package
            };
            let of_node = || packages_of.get(&cpu.node?)?.first().copied();
            of_cache().or(cpu.package).or_else(|| if outer { of_node() } else { None })
        }),
    );
    let cache: Level<'a> = ("cache", Box::new(|cpu| cpu.llc));
    // A sibling that isn't allowed is in no pod, but in the core of one that is.
    let shard: Level<'a> = (
        "shard",
        Box::new(|cpu| {
            let of = |cpu| pods.pod_of(AffinityScope::CacheShard, cpu);
            of(cpu.cpu).or_else(|| {
                let core = cpu.core?;
                let mut siblings = topology.cpus().iter().filter(|c| c.core == Some(core));
                siblings.find_map(|sibling| of(sibling.cpu))
            })
        }),
    );
    if outer { vec![package, node, cache, shard] } else { vec![node, package, cache, shard] }
}

fn area(names: Vec<String>, cpus: &[&Cpu], levels: &[Level<'_>], topology: &Topology) -> Area {
    let set: CpuSet = cpus.iter().map(|cpu| cpu.cpu).collect();
    let Some(((name, key), rest)) = levels.split_first() else {
        return Area { names, cpus: set, pod: None, inside: Inside::Cores(cores(cpus)) };
    };
    let mut parts: Vec<(Option<u32>, Vec<&Cpu>)> = Vec::new();
    for cpu in cpus {
        let key = key(cpu);
        match parts.iter_mut().find(|(known, _)| *known == key) {
            Some((_, part)) => part.push(cpu),
            None => parts.push((key, vec![cpu])),
        }
    }
    // CPUs without known facts come last, as their pods do.
    parts.sort_by_key(|(key, part)| (key.is_none(), part.first().map(|cpu| cpu.cpu)));
    if let [(key, _)] = parts[..] {
        let mut names = names;
        names.extend(key.map(|number| format!("{name} {number}")));
        return area(names, cpus, rest, topology);
    }
    let areas = parts.into_iter().map(|(key, part)| match key {
        Some(number) => area(vec![format!("{name} {number}")], &part, rest, topology),
        None => {
            let off_limits = |cpu: &&Cpu| cpu.online && !topology.allowed().contains(cpu.cpu);
            let unknown = if part.iter().all(off_limits) { "not allowed" } else { "place unknown" };
            area(vec![unknown.to_string()], &part, &[], topology)
        }
    });
    Area { names, cpus: set, pod: None, inside: Inside::Areas(areas.collect()) }
}

fn cores(cpus: &[&Cpu]) -> Vec<Core> {
    let mut cores: Vec<(Option<u32>, Core)> = Vec::new();
    for cpu in cpus {
        let known = cores.iter_mut().find(|(core, _)| core.is_some() && *core == cpu.core);
        match known {
            Some((_, core)) => core.cpus.push(cpu.cpu),
            None => cores
                .push((cpu.core, Core { cpus: vec![cpu.cpu], pod: None, cpu_pods: Vec::new() })),
        }
    }
    cores
        .into_iter()
        .map(|(_, core)| Core { cpu_pods: vec![None; core.cpus.len()], ..core })
        .collect()
}

/// Renames `cache 3` to `L3 3` if the level is known.
fn name_caches(area: &mut Area, topology: &Topology) {
    for name in &mut area.names {
        let number = name.strip_prefix("cache ").and_then(|number| number.parse::<usize>().ok());
        let level = number.and_then(|number| topology.llcs().get(number)?.level);
        match (number, level) {
            (Some(number), Some(level)) => *name = format!("L{level} {number}"),
            // A package stands for the cache.
            (Some(number), None) => *name = format!("cache {number} (none reported)"),
            _ => {}
        }
    }
    if let Inside::Areas(areas) = &mut area.inside {
        areas.iter_mut().for_each(|area| name_caches(area, topology));
    }
}

fn drop_names(area: &mut Area, start: &str) {
    area.names.retain(|name| !name.starts_with(start));
    if let Inside::Areas(areas) = &mut area.inside {
        areas.iter_mut().for_each(|area| drop_names(area, start));
    }
}

impl Area {
    /// Marks the innermost box, or else the core or CPU, that holds these CPUs and no other allowed
    /// one.
    fn show(&mut self, pod: u32, cpus: &CpuSet, allowed: &CpuSet, scope: AffinityScope) -> bool {
        if !cpus.is_subset(&self.cpus) {
            return false;
        }
        if let Inside::Areas(areas) = &mut self.inside {
            if areas.iter_mut().any(|area| area.show(pod, cpus, allowed, scope)) {
                return true;
            }
        }
        let fine = matches!(scope, AffinityScope::Cpu | AffinityScope::Smt);
        if !fine && self.pod.is_none() && self.cpus.intersection(allowed) == *cpus {
            self.pod = Some(pod);
            return true;
        }
        match &mut self.inside {
            Inside::Areas(_) => false,
            Inside::Cores(cores) => {
                cores.iter_mut().any(|core| core.show(pod, cpus, allowed, scope))
            }
        }
    }
}

impl Core {
    fn show(&mut self, pod: u32, cpus: &CpuSet, allowed: &CpuSet, scope: AffinityScope) -> bool {
        let own: CpuSet = self.cpus.iter().copied().collect();
        if scope != AffinityScope::Cpu && own.intersection(allowed) == *cpus {
            self.pod = Some(pod);
            return true;
        }
        let (Some(first), 1) = (cpus.first(), cpus.len()) else { return false };
        let Some(index) = self.cpus.iter().position(|&cpu| cpu == first) else { return false };
        self.cpu_pods[index] = Some(pod);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the names and CPUs of each box with the pod that it shows, outermost first.
    fn boxes(area: &Area, out: &mut Vec<String>) {
        let pod = area.pod.map_or(String::new(), |pod| format!(" = pod {pod}"));
        out.push(format!("{}: {}{pod}", area.names.join(", "), area.cpus));
        if let Inside::Areas(areas) = &area.inside {
            areas.iter().for_each(|area| boxes(area, out));
        }
    }

    fn tree(topology: &Topology, scope: AffinityScope) -> Vec<String> {
        let tree = Tree::new(topology, &Pods::new(topology, 8), scope);
        assert!(tree.scattered.is_empty(), "{:?}", tree.scattered);
        let mut out = Vec::new();
        boxes(&tree.root, &mut out);
        out
    }

    #[test]
    fn equal_neighbours_share_one_box() {
        let topology = Topology::synthetic("package:1 l3:1 core:2 pu:1").unwrap();
        assert_eq!(
            tree(&topology, AffinityScope::CacheShard),
            ["package 0, node 0, L3 0: 0-1 = pod 0"]
        );
    }

    #[test]
    fn packages_hold_nodes_or_nodes_hold_packages() {
        let inside = Topology::synthetic("package:2 numa:2 l3:1 core:2 pu:1").unwrap();
        assert_eq!(
            tree(&inside, AffinityScope::Numa)[..4],
            [
                ": 0-7",
                "package 0: 0-3",
                "node 0, L3 0, shard 0: 0-1 = pod 0",
                "node 1, L3 1, shard 1: 2-3 = pod 1"
            ]
        );
        let outside = Topology::synthetic("numa:1 package:2 l3:1 core:2 pu:1").unwrap();
        assert_eq!(
            tree(&outside, AffinityScope::System),
            [
                "node 0: 0-3 = pod 0",
                "package 0, L3 0, shard 0: 0-1",
                "package 1, L3 1, shard 1: 2-3"
            ]
        );
    }

    #[test]
    fn a_sibling_that_is_not_allowed_stays_with_its_core() {
        let topology = Topology::synthetic("l3:1 core:12 pu:2").unwrap();
        let topology = topology.with_allowed(&"1,3,5,6-23".parse().unwrap()).unwrap();
        assert_eq!(
            tree(&topology, AffinityScope::CacheShard)[1..],
            [": 0-11 = pod 0", ": 12-23 = pod 1"]
        );
        let few = topology.with_allowed(&"0-3".parse().unwrap()).unwrap();
        assert_eq!(
            tree(&few, AffinityScope::CacheShard),
            ["package 0, node 0, L3 0: 0-23", ": 0-3 = pod 0", "not allowed: 4-23"]
        );
    }
}
