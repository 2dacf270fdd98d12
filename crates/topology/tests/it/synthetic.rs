//! Tests of hwloc's synthetic language: what descriptions mean, and the errors for wrong ones.

use corewise_topology::{AffinityScope, Cpu, CpuSet, Pods, Topology, TopologyError};

fn pods(topology: &Topology, scope: AffinityScope) -> Vec<(String, Option<u32>)> {
    let pods = Pods::new(topology, 8);
    pods.scope(scope).iter().map(|pod| (pod.cpus.to_string(), pod.node)).collect()
}

/// Returns the numbers of CPUs, cores, packages, last-level caches and nodes, and the level of the
/// caches.
fn shape(description: &str) -> (usize, usize, usize, usize, usize, Option<u32>) {
    let topology = Topology::synthetic(description).unwrap_or_else(|error| panic!("{error}"));
    (
        topology.cpus().len(),
        topology.core_count(),
        topology.package_count(),
        topology.llcs().len(),
        topology.nodes().len(),
        topology.llcs()[0].level,
    )
}

#[test]
fn levels_multiply_from_the_outermost_to_the_innermost() {
    for (description, wanted) in [
        ("numa:2 l3:1 core:36 pu:2", (144, 72, 1, 2, 2, Some(3))),
        ("package:2 numa:2 l3:2 l2:4 core:1 pu:2", (64, 32, 2, 8, 4, Some(3))),
        ("pu:3", (3, 3, 1, 1, 1, None)),
        ("core:4 pu:1", (4, 4, 1, 1, 1, None)),
        ("pack:2 core:2 pu:2", (8, 4, 2, 2, 1, None)),
        ("group:2 die:2 l3:1 group0:2 core:2 pu:1", (16, 16, 1, 4, 1, Some(3))),
        ("l2:4 l1d:1 l1i:1 core:1 pu:1", (4, 4, 1, 4, 1, Some(2))),
        ("l1i:4 core:1 pu:1", (4, 4, 1, 1, 1, None)),
        ("l1:4 core:1 pu:1", (4, 4, 1, 4, 1, Some(1))),
        ("  core:2\n pu:2  ", (4, 2, 1, 1, 1, None)),
    ] {
        assert_eq!(shape(description), wanted, "{description}");
    }
}

#[test]
fn names_may_be_in_any_case_long_or_shortened() {
    let wanted = shape("package:2 numanode:1 l3:1 core:2 pu:2");
    for description in [
        "Package:2 NUMANode:1 L3Cache:1 Core:2 PU:2",
        "SOCKET:2 NODE:1 L3U:1 CORE:2 PU:2",
        "pa:2 nu:1 l3ucache:1 co:2 pu:2",
        "sock:2 no:1 l3d:1 cor:2 Pu:2",
        "pack:2(memory=1GB) numa:1(memory=256GiB memorysidecachesize=1GiB) l3:1(size=20mib) core:2 pu:2",
        "(memory=1TB) package:2 numa:1 l3:1(size=1000) core:2() pu:2",
    ] {
        assert_eq!(shape(description), wanted, "{description}");
    }
}

#[test]
fn siblings_are_adjacent_and_everything_is_online_and_allowed() {
    let topology = Topology::synthetic("numa:2 l3:2 core:2 pu:2").unwrap();
    let facts = |cpu: &Cpu| (cpu.core.unwrap(), cpu.llc.unwrap(), cpu.node.unwrap());
    let all: Vec<_> = topology.cpus().iter().map(facts).collect();
    assert_eq!(all[..5], [(0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0), (2, 1, 0)]);
    assert_eq!(all[15], (7, 3, 1));
    assert_eq!(topology.online(), CpuSet::full(16));
    assert_eq!(topology.allowed(), &CpuSet::full(16));
    assert!(topology.isolated().is_empty());
    assert_eq!(topology.source().to_string(), "synthetic:numa:2 l3:2 core:2 pu:2");
}

#[test]
fn every_scope_of_a_two_node_machine() {
    let topology = Topology::synthetic("numa:2 l3:1 core:36 pu:2").unwrap();
    let count = |scope| pods(&topology, scope).len();
    assert_eq!(AffinityScope::ALL.map(count), [144, 72, 2, 10, 2, 1]);
    let shards = pods(&topology, AffinityScope::CacheShard);
    assert_eq!(shards[0], ("0-15".into(), Some(0)));
    assert_eq!(shards[1], ("16-29".into(), Some(0)));
    assert_eq!(shards[5], ("72-87".into(), Some(1)));
    assert_eq!(pods(&topology, AffinityScope::System), [("0-143".into(), None)]);
}

#[test]
fn attached_nodes_belong_to_the_level_before_them() {
    for (description, wanted) in [
        ("pack:2 [numa] core:2 pu:1", vec!["0-1", "2-3"]),
        ("[numa] pack:2 core:2 pu:1", vec!["0-3"]),
        ("pack:2 [NUMANode(memory=1GiB)] core:2 pu:1", vec!["0-1", "2-3"]),
        // As in hwloc, the second node of a package is further away and no CPU's own.
        ("pack:2 [numa] [numa(memory=16GB)] core:2 pu:1", vec!["0-1", "", "2-3", ""]),
        // As in hwloc, nodes of inner levels are numbered first; a CPU's own is the innermost.
        ("pack:1 [numa] core:2 [numa] pu:2", vec!["0-1", "2-3", ""]),
    ] {
        let topology = Topology::synthetic(description).unwrap();
        let nodes: Vec<_> = topology.nodes().iter().map(|node| node.cpus.to_string()).collect();
        assert_eq!(nodes, wanted, "{description}");
        assert!(topology.nodes().iter().map(|node| node.node).eq(0..wanted.len() as u32));
    }
}

#[test]
fn bare_numbers_get_hwlocs_usual_types() {
    for (bare, typed) in [
        ("4", "pu:4"),
        ("2 3", "numa:2 pu:3"),
        ("2 3 4", "package:2 numa:3 pu:4"),
        ("2 3 4 5", "package:2 numa:3 core:4 pu:5"),
        ("2 3 4 5 6", "package:2 numa:3 l2:4 core:5 pu:6"),
        ("2 1 2 1 2 2", "package:2 numa:1 l2:2 l1:1 core:2 pu:2"),
        ("2 1 2 2 1 2 2", "package:2 numa:1 l3:2 l2:2 l1:1 core:2 pu:2"),
        ("2 2 1 2 2 1 1 2 2", "group:2 package:2 numa:1 l3:2 l2:2 l1:1 l1i:1 core:2 pu:2"),
        ("2 [numa] 3 4", "package:2 [numa] core:3 pu:4"),
        ("pack:2 core:3 4", "pack:2 core:3 pu:4"),
    ] {
        let [bare, typed] = [bare, typed].map(|d| Topology::synthetic(d).unwrap());
        assert_eq!((bare.cpus(), bare.nodes()), (typed.cpus(), typed.nodes()), "{bare:?}");
        assert_eq!(bare.llcs(), typed.llcs());
    }
}

/// Returns the CPUs of each core, in the order of the tree's cores, and of each node.
fn numbering(description: &str) -> (Vec<String>, Vec<(u32, String)>) {
    let topology = Topology::synthetic(description).unwrap_or_else(|error| panic!("{error}"));
    let smt = pods(&topology, AffinityScope::Smt).into_iter().map(|(cpus, _)| cpus).collect();
    let nodes = topology.nodes().iter().map(|node| (node.node, node.cpus.to_string()));
    (smt, nodes.collect())
}

#[test]
fn indexes_number_the_cpus_of_the_whole_machine() {
    for (description, cores) in [
        ("core:2 pu:2(indexes=0,2,1,3)", vec!["0,2", "1,3"]),
        ("core:2 pu:2(indexes=core)", vec!["0,2", "1,3"]),
        ("core:2 pu:2(indexes=2*2:1*2)", vec!["0,2", "1,3"]),
        ("core:2 pu:2(indexes=7,4,1,100)", vec!["1,100", "4,7"]),
        ("numa:2 core:2 pu:2(indexes=numa:core)", vec!["0,4", "1,5", "2,6", "3,7"]),
        // A later attribute of the same name wins, as in hwloc.
        ("core:2 pu:2(indexes=0,1,2,3 indexes=core)", vec!["0,2", "1,3"]),
    ] {
        assert_eq!(numbering(description).0, cores, "{description}");
    }
}

#[test]
fn indexes_name_groups_by_their_number_or_the_outermost() {
    // As in hwloc, groups are numbered from the innermost, 1, outwards.
    for (name, caches) in [
        ("group", ["0,2", "1,3", "4,6", "5,7"]),
        ("group2", ["0,2", "1,3", "4,6", "5,7"]),
        ("group1", ["0,4", "1,5", "2,6", "3,7"]),
    ] {
        let description = format!("group:2 group:2 l2:1 core:2 pu:1(indexes={name}:core)");
        let topology = Topology::synthetic(&description).unwrap();
        let found: Vec<_> =
            pods(&topology, AffinityScope::Cache).into_iter().map(|p| p.0).collect();
        assert_eq!(found, caches, "{description}");
    }
    let found = Topology::synthetic("group7:2 group:2 pu:1(indexes=group1)").unwrap_err();
    assert!(found.to_string().contains("no level 'group1'"), "{found}");
}

#[test]
fn indexes_number_nodes_that_are_a_level_or_attached() {
    for (description, nodes) in [
        ("numa:2(indexes=1,0) pu:2", vec![(0, "2-3"), (1, "0-1")]),
        ("numa:2(indexes=0,8) pu:2", vec![(0, "0-1"), (8, "2-3")]),
        ("package:2 [numa(indexes=5,2)] pu:2", vec![(2, "2-3"), (5, "0-1")]),
        ("pack:2 numa:2(indexes=package) pu:1", vec![(0, "0"), (1, "2"), (2, "1"), (3, "3")]),
        // If two nodes surround the same CPUs, the lower one is their own.
        (
            "package:2 [numa(indexes=2,1,0,3)] [numa] pu:1",
            vec![(0, "1"), (1, "0"), (2, ""), (3, "")],
        ),
        // One list numbers all attached nodes, in the order in which they come without one.
        ("[numa] pack:2 [numa(indexes=7,3,9)] pu:1", vec![(3, "1"), (7, "0"), (9, "")]),
    ] {
        let nodes: Vec<_> = nodes.into_iter().map(|(node, cpus)| (node, cpus.to_owned())).collect();
        assert_eq!(numbering(description).1, nodes, "{description}");
    }
}

#[test]
fn indexes_of_other_objects_change_nothing() {
    let plain = Topology::synthetic("package:2 l3:2 core:2 pu:2").unwrap();
    let numbered = Topology::synthetic(
        "(indexes=3) package:2(indexes=9,4) l3:2(size=1MB indexes=package) core:2(indexes=7,6,5,4,3,2,1,0) pu:2",
    );
    assert_eq!(numbered.unwrap().cpus(), plain.cpus());
}

#[test]
fn a_wrong_description_names_the_token_its_position_and_the_remedy() {
    for (description, token, position, word) in [
        ("", "", 1, "no levels"),
        ("   ", "", 1, "no levels"),
        ("(memory=1GB)", "", 13, "no levels"),
        ("numa:2 l3:1 core:36", "", 20, "add 'pu:1'"),
        ("numa:2 cors:4 pu:2", "cors", 8, "unknown type"),
        ("c:4 pu:2", "c", 1, "unknown type"),
        ("machine:1 pu:2", "machine", 1, "the machine is implied"),
        ("l6:1 pu:1", "l6", 1, "l1 to l5"),
        ("l4i:1 pu:1", "l4i", 1, "l1 to l5"),
        ("l3x:1 pu:1", "l3x", 1, "l1 to l5"),
        ("core pu:2", "core", 1, "as in 'core:2'"),
        ("core:x pu:2", "core:x", 1, "a number of objects"),
        ("core: pu:2", "core:", 1, "a number of objects"),
        ("core:-2 pu:2", "core:-2", 1, "a number of objects"),
        ("core:2x pu:2", "core:2x", 1, "a number of objects"),
        ("core:0 pu:2", "core:0", 1, "leave out the level"),
        ("core:99999999999 pu:2", "core:99999999999", 1, "too large"),
        ("core:4096 pu:4", "pu:4", 11, "more than 8192"),
        ("core:2 core:2 pu:2", "core:2", 8, "already"),
        ("pu:2 pu:2", "pu:2", 6, "already"),
        ("numa:2 node:2 pu:2", "node:2", 8, "already"),
        ("numa:2 [numa] pu:2", "[numa]", 8, "not both"),
        ("core:2 4 pu:2", "4", 8, "bare number"),
        ("[core] pu:2", "[core]", 1, "'[numa]'"),
        ("[numa pu:2", "[numa", 1, "closing ']'"),
        ("l3:2(size=32MB", "(size=32MB", 5, "closing ')'"),
        ("l3:2(size=big) pu:2", "size=big", 6, "a size such as"),
        ("l3:2(memory=1GB) pu:2", "memory=1GB", 6, "not an attribute of a cache"),
        ("core:2(size=1MB) pu:2", "size=1MB", 8, "not an attribute of this level"),
        ("core:2 pu:2(indexes=)", "indexes=", 13, "expected a number"),
        ("core:2 pu:2(indexes=0,2,1)", "0,2,1", 21, "3 numbers for 4 objects"),
        ("core:2 pu:2(indexes=0,2,1,2)", "2", 27, "used twice"),
        ("core:2 pu:2(indexes=core:die)", "die", 26, "no level 'die'"),
        ("core:2 pu:2(indexes=core:cors)", "cors", 26, "unknown type"),
        ("core:2 pu:2(indexes=core:pu)", "pu", 26, "it always comes last"),
        ("core:2 pu:2(indexes=2*3)", "2*3", 21, "interleaves 3 objects"),
        ("core:2(indexes=1,1) pu:2", "1", 18, "used twice"),
        ("(indexes=0,1) core:2 pu:2", "1", 12, "more numbers"),
        ("core:2 [numa] pu:2(indexes=numa)", "numa", 28, "attached"),
        ("core:2 [numa(indexes=0)] pu:2", "0", 22, "1 numbers for 2 objects"),
        ("numa:2 ü:1 pu:2", "ü", 8, "unknown type"),
        ("ü:1 cors:2", "ü", 1, "unknown type"),
        ("core:2 pu:2 )", ")", 13, "unknown type"),
    ] {
        let error = Topology::synthetic(description).unwrap_err();
        let TopologyError::Synthetic { token: found, position: at, reason, .. } = &error else {
            panic!("{description}: {error:?}");
        };
        assert_eq!((found.as_str(), *at), (token, position), "{description}: {reason}");
        assert!(reason.contains(word), "{description}: {reason}");
    }
}

#[test]
fn large_machines_are_built() {
    let topology = Topology::synthetic("package:8 l3:16 core:32 pu:2").unwrap();
    assert_eq!(topology.cpus().len(), 8192);
    let one_cache = Topology::synthetic("l3:1 core:512 pu:1").unwrap();
    assert_eq!(pods(&one_cache, AffinityScope::CacheShard).len(), 64);
}

#[test]
fn a_description_that_is_too_deep_or_has_too_many_nodes_is_refused_where_that_begins() {
    let deep = |levels: usize| "group:1 ".repeat(levels) + "pu:1";
    assert!(Topology::synthetic(&deep(127)).is_ok());
    for levels in [128, 200_000] {
        let error = Topology::synthetic(&deep(levels)).unwrap_err().to_string();
        assert!(error.contains("more than 128 levels"), "{:.200}", error);
    }
    let nodes = |each: usize| format!("group:1024 {} core:8 pu:1", "[numa]".repeat(each));
    assert_eq!(Topology::synthetic(&nodes(8)).unwrap().nodes().len(), 8192);
    for each in [9, 100_000] {
        let error = Topology::synthetic(&nodes(each)).unwrap_err().to_string();
        assert!(error.contains("too many NUMA nodes"), "{:.200}", error);
    }
}
