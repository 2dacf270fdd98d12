//! Tests of the machines in tests/data, each named after its pitfall, in every form that it has.

use std::fs;
use std::path::{Path, PathBuf};

use corewise_topology::{AffinityScope, CpuId, CpuSet, Pods, Topology};

/// The machines in a form that can be read: name, form, and topology.
type Read = Vec<(String, &'static str, Topology)>;

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

/// Returns the name, description and allowed CPUs of each machine.
fn machines() -> Vec<[String; 3]> {
    let table = fs::read_to_string(data("machines.txt")).unwrap();
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let machines = lines.map(|line| {
        let columns: Vec<String> = line.split('|').map(|word| word.trim().to_owned()).collect();
        columns.try_into().unwrap_or_else(|_| panic!("three columns: {line}"))
    });
    machines.collect()
}

/// Restores a folder from a file of `PATH:CONTENT` lines, and reads it.
fn sysfs(path: &Path) -> Topology {
    // Hundreds of small files are not worth a disk.
    let memory = Some(Path::new("/dev/shm")).filter(|memory| memory.is_dir());
    let folder = memory.map_or_else(tempfile::tempdir, tempfile::tempdir_in).unwrap();
    for line in fs::read_to_string(path).unwrap().lines() {
        let (file, text) = line.split_once(':').unwrap();
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }
    Topology::from_sysfs(folder.path()).unwrap()
}

/// Returns a machine in every form that it has.
fn forms(name: &str) -> Read {
    let [_, description, allowed] = machines().into_iter().find(|row| row[0] == name).unwrap();
    let mut forms = Vec::new();
    if !description.is_empty() {
        forms.push(("synthetic", Topology::synthetic(&description).unwrap()));
    }
    let saved = data(&format!("sysfs/{name}.sysfs"));
    if saved.exists() {
        forms.push(("sysfs", sysfs(&saved)));
    }
    // Only an export has the cpuset of a process in it.
    for (_, topology) in &mut forms {
        if !allowed.is_empty() {
            *topology = topology.clone().with_allowed(&allowed.parse().unwrap()).unwrap();
        }
    }
    let export = data(&format!("xml/{name}.xml"));
    if export.exists() {
        forms.push(("xml", Topology::from_xml(export).unwrap()));
    }
    forms.into_iter().map(|(form, topology)| (name.to_owned(), form, topology)).collect()
}

/// Checks a machine in every form: its counts of CPUs, cores, packages and nodes, the level of its
/// last-level caches, and the cores of each cache's shards.
fn check(name: &str, counts: [usize; 4], level: Option<u32>, shards: &[&[u32]]) {
    let forms = forms(name);
    assert!(!forms.is_empty(), "{name}");
    for (name, form, topology) in forms {
        let found = [
            topology.cpus().len(),
            topology.core_count(),
            topology.package_count(),
            topology.nodes().len(),
        ];
        assert_eq!(found, counts, "{name}, {form}: CPUs, cores, packages, nodes");
        assert!(topology.llcs().iter().all(|llc| llc.level == level), "{name}, {form}");
        let pods = Pods::new(&topology, 8);
        let layouts: Vec<_> = pods.shard_layouts().map(|(_, layout)| layout.shards()).collect();
        assert_eq!(layouts, shards, "{name}, {form}");
    }
}

#[test]
fn at_least_eight_machines_are_there_and_each_has_a_form() {
    let names: Vec<String> = machines().into_iter().map(|[name, ..]| name).collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in &names {
        assert!(!forms(name).is_empty(), "{name}");
    }
    // Every file must be read by a test.
    for (folder, ending) in [("xml", ".xml"), ("sysfs", ".sysfs")] {
        for entry in fs::read_dir(data(folder)).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            let name = file.strip_suffix(ending).unwrap();
            assert!(names.iter().any(|known| known == name), "{file}");
        }
    }
}

#[test]
fn every_form_of_a_machine_gives_the_same_facts() {
    let mut compared = 0;
    for [name, ..] in machines() {
        let forms = forms(&name);
        for pair in forms.windows(2) {
            let [(_, first, a), (_, second, b)] = pair else { unreachable!() };
            let what = format!("{name}: {first} and {second}");
            assert_eq!(a.cpus(), b.cpus(), "{what}");
            assert_eq!(a.nodes(), b.nodes(), "{what}");
            assert_eq!(a.llcs(), b.llcs(), "{what}");
            let kinds = |topology: &Topology| -> Vec<CpuSet> {
                topology.kinds().iter().map(|kind| kind.cpus.clone()).collect()
            };
            assert_eq!(kinds(a), kinds(b), "{what}");
            assert_eq!(a.isolated(), b.isolated(), "{what}");
            // An export of a running machine allows no CPU that was offline.
            let online = a.online();
            assert_eq!(a.allowed().intersection(&online), b.allowed().intersection(&online));
            if a.allowed() == b.allowed() {
                assert_eq!(Pods::new(a, 8), Pods::new(b, 8), "{what}");
            }
            compared += 1;
        }
    }
    assert!(compared >= 10, "{compared} pairs");
}

#[test]
fn each_machine_has_its_counts_its_last_level_and_its_shards() {
    check("one-cache-72-cores", [72, 72, 1, 1], Some(3), &[&[8; 9]]);
    check("one-cache-512-cpus", [512, 512, 1, 1], Some(3), &[&[8; 64]]);
    check("eleven-caches-of-8-cores", [176, 88, 1, 1], Some(3), &[[8].as_slice(); 11]);
    check("vm-without-l3", [8, 8, 1, 1], Some(2), &[[1].as_slice(); 8]);
    check("vm-without-caches", [8, 8, 8, 1], None, &[[1].as_slice(); 8]);
    check("unequal-clusters", [10, 10, 1, 1], Some(2), &[&[4], &[4], &[2]]);
}

#[test]
fn two_nodes_have_the_same_shard_sizes_however_siblings_are_numbered() {
    for (name, first) in
        [("two-nodes-adjacent-siblings", "0-11"), ("two-nodes-far-siblings", "0-5,24-29")]
    {
        check(name, [48, 24, 2, 2], Some(3), &[&[6, 6], &[6, 6]]);
        for (_, form, topology) in forms(name) {
            let pods = Pods::new(&topology, 8);
            let shards = pods.scope(AffinityScope::CacheShard);
            assert_eq!(shards[0].cpus.to_string(), first, "{form}");
            assert_eq!(shards.iter().map(|pod| pod.cpus.len()).collect::<Vec<_>>(), [12; 4]);
            let nodes: Vec<_> = shards.iter().map(|pod| pod.node).collect();
            assert_eq!(nodes, [Some(0), Some(0), Some(1), Some(1)], "{form}");
        }
    }
}

#[test]
fn a_cpuset_that_hides_lowest_siblings_hides_no_core() {
    check("cpuset-hides-lowest-siblings", [48, 24, 1, 1], Some(3), &[&[8, 8, 8]]);
    for (_, form, topology) in forms("cpuset-hides-lowest-siblings") {
        let pods = Pods::new(&topology, 8);
        let shards = pods.scope(AffinityScope::CacheShard).iter();
        let shards: Vec<String> = shards.map(|pod| pod.cpus.to_string()).collect();
        // 36-47 are the second threads of 12-23.
        assert_eq!(shards, ["0-7", "8-11,36-39", "40-47"], "{form}");
    }
}

/// Checks the CPUs of each shard in every form of a machine, for a shard size.
fn shards(name: &str, size: u32, wanted: &[&str]) {
    for (_, form, topology) in forms(name) {
        let pods = Pods::new(&topology, size);
        let pods = pods.scope(AffinityScope::CacheShard).iter();
        let found: Vec<String> = pods.map(|pod| pod.cpus.to_string()).collect();
        assert_eq!(found, wanted, "{name}, {form}, size {size}");
    }
}

#[test]
fn a_hybrid_cpus_shards_keep_efficient_cores_with_their_l2_and_apart_from_performance_cores() {
    check("hybrid-8-and-16", [32, 24, 1, 1], Some(3), &[&[8, 8, 8]]);
    shards("hybrid-8-and-16", 8, &["0-15", "16-23", "24-31"]);
    shards("hybrid-8-and-16", 5, &["0-7", "8-15", "16-23", "24-27", "28-31"]);
    shards("hybrid-8-and-16", 100, &["0-15", "16-31"]);
    shards("hybrid-8-and-16", 12, &["0-15", "16-31"]);
    for (_, form, topology) in forms("hybrid-8-and-16") {
        let kinds: Vec<String> = topology.kinds().iter().map(|k| k.cpus.to_string()).collect();
        assert_eq!(kinds, ["0-15", "16-31"], "{form}");
        let cluster = |cpu| topology.cpu(CpuId::new(cpu)).unwrap().cluster.unwrap();
        assert_eq!(cluster(0), cluster(1), "{form}");
        assert_ne!(cluster(1), cluster(2), "{form}");
        assert_eq!((cluster(16), cluster(20)), (cluster(19), cluster(23)), "{form}");
        assert_ne!(cluster(19), cluster(20), "{form}");
        // A cpuset cuts clusters, and the rest of each stays together.
        let narrow = topology.clone().with_allowed(&"0-3,17-19,22-31".parse().unwrap()).unwrap();
        let pods = Pods::new(&narrow, 4);
        let pods = pods.scope(AffinityScope::CacheShard).iter();
        let found: Vec<String> = pods.map(|pod| pod.cpus.to_string()).collect();
        assert_eq!(found, ["0-3", "17-19,22-23", "24-27", "28-31"], "{form}");
    }
}

#[test]
fn cores_outside_of_the_last_level_cache_have_their_own() {
    for (_, form, topology) in forms("hybrid-low-power-island") {
        let llcs = topology.llcs().iter();
        let llcs: Vec<_> = llcs.map(|llc| (llc.level, llc.cpus.to_string())).collect();
        assert_eq!(llcs, [(Some(3), "0-13".into()), (Some(2), "14-15".into())], "{form}");
        let kinds = topology.kinds().iter();
        let kinds: Vec<_> = kinds.map(|kind| (kind.name.as_str(), kind.cpus.to_string())).collect();
        let wanted = [("cpu_core", "0-5"), ("cpu_atom", "6-13"), ("cpu_lowpower", "14-15")];
        assert_eq!(kinds, wanted.map(|(name, cpus)| (name, cpus.to_owned())), "{form}");
    }
    shards("hybrid-low-power-island", 8, &["0-5", "6-13", "14-15"]);
}

#[test]
fn big_and_little_cores_are_told_apart_and_cores_that_clock_a_little_lower_are_not() {
    check("big-and-little", [8, 8, 1, 1], Some(3), &[&[4, 4]]);
    shards("big-and-little", 8, &["0-3", "4-7"]);
    for (_, form, topology) in forms("big-and-little") {
        let names: Vec<&str> = topology.kinds().iter().map(|kind| kind.name.as_str()).collect();
        assert_eq!(names, ["capacity 446", "capacity 1007"], "{form}");
    }
}

#[test]
fn clusters_of_a_machine_of_one_kind_stay_whole() {
    check("clusters-of-4-under-one-cache", [144, 144, 1, 1], Some(3), &[&[8; 18]]);
    for size in [6, 10] {
        for (_, form, topology) in forms("clusters-of-4-under-one-cache") {
            let pods = Pods::new(&topology, size);
            for pod in pods.scope(AffinityScope::CacheShard) {
                let first = pod.cpus.first().unwrap().number();
                assert!(first % 4 == 0 && pod.cpus.len() % 4 == 0, "{form}: {pod:?}");
            }
        }
    }
}

#[test]
fn machines_of_one_kind_with_private_caches_have_the_kernels_shards() {
    for [name, ..] in machines() {
        for (name, form, topology) in forms(&name) {
            let private = topology.cpus().iter().all(|cpu| {
                let shared = |other: &&corewise_topology::Cpu| {
                    other.cluster.is_some() && other.cluster == cpu.cluster
                };
                topology.cpus().iter().filter(shared).all(|other| other.core == cpu.core)
            });
            if !private || !topology.kinds().is_empty() {
                continue;
            }
            for (_, layout) in Pods::new(&topology, 8).shard_layouts() {
                let plain = corewise_topology::shard_layout(layout.cores(), 8);
                assert_eq!(*layout, plain, "{name}, {form}");
            }
        }
    }
}

#[test]
fn fast_memory_beside_a_node_is_no_cpus_own() {
    for (_, form, topology) in forms("memory-of-two-kinds") {
        let nodes: Vec<_> =
            topology.nodes().iter().map(|node| (node.node, node.cpus.to_string())).collect();
        let wanted = [(0, "0-3"), (1, ""), (2, "4-7"), (3, "")];
        assert_eq!(nodes, wanted.map(|(node, cpus)| (node, cpus.to_owned())), "{form}");
    }
}
