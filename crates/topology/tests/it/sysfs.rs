//! Tests of saved sysfs trees: what is read from them, and the defaults for what they don't report.

use std::fs;

use crate::support::{Regular, Siblings, Tree};
use corewise_topology::{AffinityScope, Cpu, CpuId, Machine, Pods, Topology, TopologyError};

const TWO_NODES: Regular =
    Regular { packages: 2, cores: 12, threads: 2, siblings: Siblings::Adjacent };

fn cpus(topology: &Topology, scope: AffinityScope) -> Vec<String> {
    Pods::new(topology, 8).scope(scope).iter().map(|pod| pod.cpus.to_string()).collect()
}

fn cpu(topology: &Topology, cpu: u32) -> &Cpu {
    topology.cpu(CpuId::new(cpu)).unwrap()
}

#[test]
fn each_usual_shape_of_a_saved_tree_is_accepted() {
    let tree = Tree::regular(TWO_NODES);
    let wanted = tree.read();
    for shape in ["sys/devices/system", "devices/system"] {
        let outer = tempfile::tempdir().unwrap();
        fs::create_dir_all(outer.path().join(shape).parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(tree.path(), outer.path().join(shape)).unwrap();
        let found = Topology::from_sysfs(outer.path()).unwrap();
        assert_eq!(found.cpus(), wanted.cpus(), "{shape}");
        assert_eq!(found.source().to_string(), format!("sysfs:{}", outer.path().display()));
    }
}

#[test]
fn core_ids_that_repeat_in_each_package_are_different_cores() {
    let tree = Tree::regular(TWO_NODES);
    let by_siblings = tree.read();
    for cpu in 0..48 {
        tree.remove(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
    }
    for topology in [by_siblings, tree.read()] {
        assert_eq!((topology.core_count(), topology.package_count()), (24, 2));
        let (first, second) = (cpu(&topology, 0), cpu(&topology, 24));
        assert_eq!((first.core, first.package), (Some(0), Some(0)));
        assert_eq!((second.core, second.package), (Some(12), Some(1)));
    }
}

#[test]
fn the_last_level_cache_is_the_highest_data_or_unified_one() {
    let tree = Tree::regular(Regular { packages: 1, cores: 4, threads: 1, ..TWO_NODES });
    for cpu in 0..4 {
        tree.remove(&format!("cpu/cpu{cpu}/cache/index3"));
        let pair = if cpu < 2 { "0-1" } else { "2-3" };
        tree.cache(cpu, 2, 2, "Unified", pair);
        // A level-4 instruction cache must not be mistaken for it.
        tree.cache(cpu, 4, 4, "Instruction", "0-3");
    }
    let topology = tree.read();
    assert_eq!(cpus(&topology, AffinityScope::Cache), ["0-1", "2-3"]);
    assert_eq!(topology.llcs().iter().map(|llc| llc.level).collect::<Vec<_>>(), [Some(2); 2]);
}

#[test]
fn where_no_cache_is_reported_the_package_stands_for_it() {
    let tree = Tree::regular(TWO_NODES);
    for cpu in 0..48 {
        tree.remove(&format!("cpu/cpu{cpu}/cache"));
    }
    let topology = tree.read();
    assert_eq!(cpus(&topology, AffinityScope::Cache), ["0-23", "24-47"]);
    assert!(topology.llcs().iter().all(|llc| llc.level.is_none()));
    assert_eq!(cpus(&topology, AffinityScope::CacheShard).len(), 4);
}

#[test]
fn a_cache_that_spans_nodes_is_divided_along_them() {
    // Sub-NUMA clustering: one package and one L3, two nodes.
    let tree = Tree::regular(Regular { packages: 1, cores: 8, threads: 1, ..TWO_NODES });
    tree.write("node/node0/cpulist", "0-3");
    tree.write("node/node1/cpulist", "4-7");
    let pods = Pods::new(&tree.read(), 8);
    let caches = pods.scope(AffinityScope::Cache);
    assert_eq!(caches.iter().map(|pod| pod.node).collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert_eq!(pods.scope(AffinityScope::System)[0].node, None);
}

#[test]
fn a_machine_without_node_folders_has_a_single_node_0() {
    let tree = Tree::regular(TWO_NODES);
    tree.remove("node");
    let topology = tree.read();
    assert_eq!(topology.nodes().len(), 1);
    assert_eq!(topology.nodes()[0].cpus, topology.cpu_set());
    assert!(topology.cpus().iter().all(|cpu| cpu.node == Some(0)));
    assert_eq!(cpus(&topology, AffinityScope::Numa), ["0-47"]);
}

#[test]
fn nodes_keep_the_kernels_numbers_and_may_have_no_cpu() {
    let tree = Tree::regular(TWO_NODES);
    fs::rename(tree.path().join("node/node1"), tree.path().join("node/node8")).unwrap();
    tree.write("node/node252/cpulist", "");
    let topology = tree.read();
    let nodes: Vec<_> = topology.nodes().iter().map(|n| (n.node, n.cpus.to_string())).collect();
    assert_eq!(nodes, [(0, "0-23".into()), (8, "24-47".into()), (252, String::new())]);
    let numa: Vec<_> = Pods::new(&topology, 8)
        .scope(AffinityScope::Numa)
        .iter()
        .map(|pod| (pod.pod, pod.node))
        .collect();
    assert_eq!(numa, [(0, Some(0)), (1, Some(8))]);
}

#[test]
fn an_offline_cpu_is_alone_in_its_pods_and_shifts_no_other_numbers() {
    let tree = Tree::regular(TWO_NODES);
    let before = cpus(&tree.read(), AffinityScope::Cache);
    assert_eq!(before, ["0-23", "24-47"]);
    tree.offline("2-3,30");
    let topology = tree.read();

    let gone = cpu(&topology, 2);
    assert_eq!((gone.online, gone.core, gone.package, gone.llc), (false, None, None, None));
    assert_eq!(topology.online().to_string(), "0-1,4-29,31-47");
    let caches = cpus(&topology, AffinityScope::Cache);
    assert_eq!(caches, ["0-1,4-23", "24-29,31-47", "2", "3", "30"]);
    assert_eq!(cpus(&topology, AffinityScope::System), ["0-47"]);
    // Core 15 has lost a thread, but is a core still; core 1 has lost both.
    let layouts: Vec<_> =
        Pods::new(&topology, 8).shard_layouts().map(|(_, layout)| layout.cores()).collect();
    assert_eq!(layouts, [11, 12]);

    let machine = Machine::new(topology);
    assert_eq!(machine.online().to_string(), "0-1,4-29,31-47");
}

#[test]
fn an_offline_cpu_keeps_its_node_if_the_link_to_it_is_left() {
    let tree = Tree::regular(TWO_NODES);
    tree.offline("5,30");
    tree.write("cpu/cpu30/node1/cpulist", "24-29,31-47");
    let topology = tree.read();
    assert_eq!((cpu(&topology, 5).node, cpu(&topology, 30).node), (None, Some(1)));
    assert_eq!(topology.node(1).unwrap().cpus.to_string(), "24-47");
}

#[test]
fn an_offline_cpu_with_a_package_is_not_taken_for_one_without_a_cache() {
    let tree = Tree::regular(Regular { packages: 1, cores: 4, threads: 1, ..TWO_NODES });
    tree.remove("cpu/cpu3/cache");
    tree.write("cpu/online", "0-2");
    let topology = tree.read();
    assert_eq!((cpu(&topology, 3).package, cpu(&topology, 3).llc), (Some(0), None));
    assert_eq!(topology.llcs().len(), 1);
}

#[test]
fn possible_cpus_that_are_not_present_do_not_count() {
    let tree = Tree::regular(Regular { packages: 1, cores: 2, threads: 1, ..TWO_NODES });
    tree.write("cpu/possible", "0-127");
    assert_eq!(tree.read().cpu_set().to_string(), "0-1");
}

#[test]
fn isolated_cpus_do_no_housekeeping() {
    let tree = Tree::regular(TWO_NODES);
    tree.write("cpu/isolated", "4-7,40");
    tree.offline("7");
    let topology = tree.read();
    assert_eq!(topology.isolated().to_string(), "4-7,40");
    let machine = Machine::new(topology);
    assert_eq!(machine.housekeeping().to_string(), "0-3,8-39,41-47");
    assert_eq!(machine.online().to_string(), "0-6,8-47");
}

#[test]
fn masks_are_read_where_an_old_tree_has_no_lists() {
    let tree = Tree::empty();
    for cpu in 0..4 {
        let topology = format!("cpu/cpu{cpu}/topology");
        tree.write(&format!("{topology}/core_id"), 0);
        tree.write(&format!("{topology}/physical_package_id"), cpu / 2);
        tree.write(&format!("{topology}/thread_siblings"), ["3", "c"][cpu / 2]);
        tree.write(&format!("cpu/cpu{cpu}/cache/index0/level"), 2);
        tree.write(&format!("cpu/cpu{cpu}/cache/index0/type"), "Unified");
        let shared = ["00000000,00000003", "00000000,0000000c"][cpu / 2];
        tree.write(&format!("cpu/cpu{cpu}/cache/index0/shared_cpu_map"), shared);
    }
    tree.write("cpu/cpu3/online", 0);
    tree.write("node/node0/cpumap", "0000000f");
    tree.write("cpu/cpufreq/boost", 1);
    let topology = tree.read();
    assert_eq!(cpus(&topology, AffinityScope::Smt), ["0-1", "2-3"]);
    assert_eq!(cpus(&topology, AffinityScope::Cache), ["0-1", "2-3"]);
    assert_eq!(topology.online().to_string(), "0-2");
}

#[test]
fn packages_without_an_id_of_their_own_are_known_by_their_cpus() {
    let tree = Tree::regular(TWO_NODES);
    for cpu in 0..48 {
        tree.write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), -1);
    }
    assert_eq!(tree.read().package_count(), 1);
    for cpu in 0..48 {
        let siblings = ["0-23", "24-47"][cpu / 24];
        tree.write(&format!("cpu/cpu{cpu}/topology/core_siblings_list"), siblings);
    }
    assert_eq!(tree.read().package_count(), 2);
}

#[test]
fn a_list_that_leaves_out_its_own_cpu_is_not_believed() {
    let tree = Tree::regular(Regular { packages: 1, cores: 4, threads: 1, ..TWO_NODES });
    tree.cache(3, 3, 3, "Unified", "0-2");
    tree.write("cpu/cpu2/cache/index3/shared_cpu_list", "0");
    tree.write("cpu/cpu2/cache/index3/shared_cpu_map", "f");
    let topology = tree.read();
    // CPU 2 is known by the mask, CPU 3 by its L2.
    assert_eq!(cpus(&topology, AffinityScope::Cache), ["0-2", "3"]);
}

#[test]
fn zero_bytes_at_the_end_of_archived_files_are_ignored() {
    let tree = Tree::regular(TWO_NODES);
    tree.write("node/node0/cpulist", "0-23\n\0");
    assert_eq!(tree.read().node(0).unwrap().cpus.len(), 24);
}

#[test]
fn cpus_about_which_nothing_is_reported_are_cores_of_one_package() {
    // As in some sandboxes: folders and lists, and nothing in the folders.
    let tree = Tree::empty();
    tree.write("cpu/online", "0-3");
    for cpu in 0..4 {
        tree.write(&format!("cpu/cpu{cpu}/crash_notes"), 0);
    }
    let topology = tree.read();
    assert_eq!((topology.core_count(), topology.package_count()), (4, 1));
    assert_eq!(cpus(&topology, AffinityScope::CacheShard), ["0-3"]);
}

#[test]
fn a_folder_that_is_not_a_sysfs_tree_is_refused_by_name() {
    let tree = Tree::empty();
    let error = Topology::from_sysfs(tree.path()).unwrap_err();
    assert!(matches!(&error, TopologyError::NotSysfs { path } if path == tree.path()));

    tree.write("cpu/kernel_max", 63);
    let error = Topology::from_sysfs(tree.path()).unwrap_err();
    assert!(matches!(error, TopologyError::NoCpu { .. }), "{error}");
}

#[test]
fn a_file_that_says_nonsense_is_named() {
    for (path, text, wanted) in [
        ("cpu/cpu1/topology/physical_package_id", "seven", "whole number"),
        ("cpu/cpu1/cache/index3/shared_cpu_list", "0-", "expected a CPU number"),
        ("cpu/cpu1/cache/index3/level", "-3", "cache level"),
        ("cpu/online", "1-0", "backwards"),
        ("node/node0/cpulist", "0,,1", "between two commas"),
    ] {
        let tree = Tree::regular(TWO_NODES);
        tree.write(path, text);
        let error = Topology::from_sysfs(tree.path()).unwrap_err().to_string();
        assert!(error.contains(path) && error.contains(wanted), "{path}: {error}");
    }
}

#[test]
fn a_device_or_an_endless_file_in_a_tree_is_refused_and_not_read() {
    let tree = Tree::regular(TWO_NODES);
    tree.remove("cpu/online");
    std::os::unix::fs::symlink("/dev/zero", tree.path().join("cpu/online")).unwrap();
    let error = Topology::from_sysfs(tree.path()).unwrap_err().to_string();
    assert!(error.contains("cpu/online") && error.contains("not a regular file"), "{error}");

    let tree = Tree::regular(TWO_NODES);
    tree.write("cpu/online", "0,".repeat(3 << 20));
    let error = Topology::from_sysfs(tree.path()).unwrap_err().to_string();
    assert!(error.contains("cpu/online") && error.contains("4 MiB"), "{error:.200}");
}
