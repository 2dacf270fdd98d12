//! Tests of the machine handle: masks that change, an epoch that counts changes, and facts that
//! never change.

use std::thread;
use std::time::Duration;

use corewise_topology::{AffinityScope, CpuId, CpuQuota, CpuSet, Machine, Topology, TopologyError};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

#[test]
fn clones_are_the_same_machine() {
    let machine = Machine::synthetic("core:4 pu:1").unwrap();
    let other = machine.clone();
    assert!(machine.set_online(CpuId::new(1), false).unwrap());
    assert_eq!(other.online(), set("0,2-3"));
    assert_eq!(other.epoch(), machine.epoch());
}

#[test]
fn two_machines_of_one_process_do_not_disturb_each_other() {
    let one = Machine::synthetic("core:4 pu:1").unwrap();
    let other = Machine::synthetic("core:4 pu:1").unwrap();
    one.set_online(CpuId::new(1), false).unwrap();
    assert_eq!((other.online(), other.epoch()), (set("0-3"), 1));
}

#[test]
fn the_epoch_moves_exactly_when_usable_cpus_change() {
    let topology = Topology::synthetic("core:4 pu:1").unwrap().with_allowed(&set("0-2")).unwrap();
    let machine = Machine::new(topology);
    assert_eq!((machine.online(), machine.epoch()), (set("0-2"), 1));

    assert!(!machine.set_online(CpuId::new(1), true).unwrap(), "it was online");
    assert!(machine.set_online(CpuId::new(3), false).unwrap());
    assert_eq!(machine.epoch(), 1, "CPU 3 isn't allowed");
    assert!(machine.set_online(CpuId::new(1), false).unwrap());
    assert_eq!(machine.epoch(), 2);
    assert!(machine.set_online(CpuId::new(1), true).unwrap());
    assert_eq!((machine.online(), machine.epoch()), (set("0-2"), 3));
}

#[test]
fn a_cpuset_may_be_narrowed_and_widened_up_to_what_was_allowed_at_first() {
    let topology = Topology::synthetic("core:8 pu:1").unwrap().with_allowed(&set("0-5")).unwrap();
    let machine = Machine::new(topology);
    assert!(machine.set_allowed(&set("0-1")).unwrap());
    machine.set_online(CpuId::new(4), false).unwrap();
    assert_eq!(machine.online(), set("0-1"));
    assert!(machine.set_allowed(&set("0-7")).unwrap());
    assert_eq!(machine.online(), set("0-3,5"));
    assert!(!machine.set_allowed(&set("0-7")).unwrap());
}

#[test]
fn the_last_usable_cpu_stays_and_nothing_has_changed() {
    let machine = Machine::synthetic("core:2 pu:1").unwrap();
    machine.set_online(CpuId::new(0), false).unwrap();
    let epoch = machine.epoch();
    let error = machine.set_online(CpuId::new(1), false).unwrap_err();
    assert!(matches!(error, TopologyError::LastCpu { .. }), "{error}");
    let error = machine.set_allowed(&set("0")).unwrap_err();
    assert!(matches!(error, TopologyError::LastCpu { .. }), "{error}");
    assert_eq!((machine.online(), machine.epoch()), (set("1"), epoch));
    machine.set_online(CpuId::new(0), true).unwrap();
    assert_eq!(machine.online(), set("0-1"), "the refused change left no trace");
}

#[test]
fn a_cpu_that_is_not_there_is_named() {
    let machine = Machine::synthetic("core:2 pu:1").unwrap();
    let error = machine.set_online(CpuId::new(7), true).unwrap_err().to_string();
    assert!(error.contains("CPU 7") && error.contains("0-1"), "{error}");
}

#[test]
fn housekeeping_is_online_without_isolated_or_all_if_that_is_none() {
    let topology = Topology::synthetic("core:4 pu:1").unwrap().with_isolated(&set("2-3,9"));
    assert_eq!(topology.isolated(), &set("2-3"));
    let machine = Machine::new(topology);
    assert_eq!(machine.housekeeping(), set("0-1"));
    machine.set_online(CpuId::new(0), false).unwrap();
    assert_eq!(machine.housekeeping(), set("1"));
    machine.set_online(CpuId::new(1), false).unwrap();
    assert_eq!(machine.housekeeping(), set("2-3"));
}

#[test]
fn isolated_cpus_can_change_and_the_epoch_says_so() {
    let machine = Machine::synthetic("core:4 pu:1").unwrap();
    assert!(machine.set_isolated(&set("2-3,9")));
    assert_eq!((machine.housekeeping(), machine.epoch()), (set("0-1"), 2));
    assert_eq!((machine.masks().isolated, machine.online()), (set("2-3"), set("0-3")));
    assert!(!machine.set_isolated(&set("2-3")), "nothing new");
    machine.set_online(CpuId::new(3), false).unwrap();
    assert_eq!(machine.masks().isolated, set("2"), "of those online");
    assert!(machine.set_isolated(&set("2")), "CPU 3 isn't isolated any more");
    assert_eq!(machine.epoch(), 3, "but that changes no mask while it is offline");
    assert!(machine.set_isolated(&set("0-3")));
    assert_eq!(machine.housekeeping(), set("0-2"), "with all of them isolated, all serve");
}

#[test]
fn pods_keep_their_numbers_whatever_is_online() {
    let machine = Machine::synthetic("numa:2 l3:1 core:12 pu:2").unwrap();
    let before = machine.pods(8);
    // The first shard of the first node loses all its CPUs.
    for cpu in &before.scope(AffinityScope::CacheShard)[0].cpus {
        machine.set_online(cpu, false).unwrap();
    }
    assert_eq!(machine.pods(8), before);
    assert!(!before.scope(AffinityScope::CacheShard)[0].cpus.intersects(&machine.online()));
}

#[test]
fn pods_of_every_scope_partition_the_allowed_cpus() {
    let whole = Topology::synthetic("package:2 numa:2 l3:3 core:5 pu:2").unwrap();
    let thirds: CpuSet = (0..120).filter(|cpu| cpu % 3 != 0).map(CpuId::new).collect();
    for topology in [whole.clone(), whole.with_allowed(&thirds).unwrap()] {
        for size in [0, 1, 2, 3, 8, 100] {
            let pods = Machine::new(topology.clone()).pods(size);
            for scope in AffinityScope::ALL {
                let mut seen = CpuSet::new();
                for (index, pod) in pods.scope(scope).iter().enumerate() {
                    assert_eq!(pod.pod as usize, index);
                    for cpu in &pod.cpus {
                        assert!(seen.insert(cpu), "{scope}: CPU {cpu} is in two pods");
                        assert_eq!(pods.pod_of(scope, cpu), Some(pod.pod));
                    }
                }
                assert_eq!(&seen, topology.allowed(), "{scope}");
                let firsts = pods.scope(scope).iter().map(|pod| pod.cpus.first());
                assert!(firsts.is_sorted(), "{scope}: numbered by the lowest CPU");
            }
            // Each scope but the last divides the next coarser one (shards lie within caches).
            let nested = [
                (AffinityScope::Cpu, AffinityScope::Smt),
                (AffinityScope::Smt, AffinityScope::CacheShard),
                (AffinityScope::CacheShard, AffinityScope::Cache),
                (AffinityScope::Cache, AffinityScope::Numa),
                (AffinityScope::Numa, AffinityScope::System),
            ];
            for (fine, coarse) in nested {
                for pod in pods.scope(fine) {
                    let outer = pods.pod_of(coarse, pod.cpus.first().unwrap()).unwrap();
                    assert!(pod.cpus.is_subset(&pods.scope(coarse)[outer as usize].cpus));
                }
            }
            assert_eq!(pods.shard_size_was_zero(), size == 0);
            assert_eq!(pods.shard_size(), size.max(1));
        }
    }
}

#[test]
fn a_cpu_that_is_not_there_is_in_no_pod() {
    let pods = Machine::synthetic("numa:2 l3:1 core:24 pu:1").unwrap().pods(8);
    assert_eq!(pods.pod_of(AffinityScope::Cpu, CpuId::new(48)), None);
}

#[test]
fn a_reader_that_panics_leaves_the_machine_usable() {
    let machine = Machine::synthetic("core:2 pu:1").unwrap();
    let other = machine.clone();
    thread::spawn(move || other.read(|_| panic!("in user code"))).join().unwrap_err();
    machine.set_online(CpuId::new(1), false).unwrap();
    assert_eq!(machine.online(), set("0"));
}

#[test]
fn threads_of_a_synthetic_machine_stay_where_they_are() {
    let machine = Machine::synthetic("core:64 pu:1").unwrap();
    assert!(machine.is_synthetic());
    assert!(!machine.pin_current_thread(&set("63")).unwrap());
}

#[test]
fn a_topology_without_a_usable_cpu_is_refused() {
    let topology = Topology::synthetic("core:4 pu:1").unwrap();
    let error = topology.with_allowed(&set("8-9")).unwrap_err().to_string();
    assert!(error.contains("8-9") && error.contains("0-3"), "{error}");
}

#[test]
fn a_cpu_quota_is_part_of_the_masks_and_bounds_how_many_threads_compute_at_once() {
    let machine = Machine::synthetic("core:4 pu:1").unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let _listening = machine.on_change(move |change| tell.send(change.to_string()).unwrap());
    assert_eq!((machine.cpu_quota(), machine.parallelism()), (None, 4));
    let quota = |millis| CpuQuota::new(Duration::from_millis(millis), Duration::from_millis(100));
    for (millis, parallelism) in [(250, 2), (30, 1), (900, 4)] {
        assert!(machine.set_cpu_quota(quota(millis)));
        assert!(!machine.set_cpu_quota(quota(millis)), "as before");
        assert_eq!(machine.masks().cpu_quota, quota(millis));
        assert_eq!(machine.parallelism(), parallelism);
    }
    assert!(machine.set_cpu_quota(None) && machine.epoch() == 5);
    let told: Vec<_> = told.try_iter().collect();
    assert!(told[0].contains("CPU quota now 2.5 CPUs") && told[3].contains("no CPU quota now"));
    machine.refresh().unwrap();
    assert_eq!(machine.epoch(), 5, "a described machine has no cgroup");
}
