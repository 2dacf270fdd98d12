//! Tests of the placer against synthetic machines; nothing here depends on real CPUs.

use super::*;
use corewise_topology::{CpuSet, Topology};

fn placer(machine: &Machine) -> (WorkerPools, Placer) {
    let pools = WorkerPools::new(machine);
    let placer = Placer::new(&pools).unwrap();
    (pools, placer)
}

fn turns(placer: &Placer, node: u32, n: usize) -> Vec<u32> {
    (0..n).map(|_| placer.choose(Path::Async, Some(node)).1.unwrap()).collect()
}

#[test]
fn probes_of_one_node_rotate_over_its_shards_and_cpus() {
    // Two shards of eight cores on each node.
    let (pools, placer) = placer(&Machine::synthetic("numa:2 l3:1 core:16 pu:1").unwrap());
    assert_eq!(turns(&placer, 1, 4), [16, 24, 17, 25]);
    assert_eq!(turns(&placer, 0, 4), [0, 8, 1, 9]);
    pools.shutdown();
}

#[test]
fn isolated_cpus_get_no_probe() {
    let isolated: CpuSet = "0-2".parse().unwrap();
    let topology = Topology::synthetic("numa:2 core:4 pu:1").unwrap().with_isolated(&isolated);
    let (pools, placer) = placer(&Machine::new(topology));
    assert_eq!(turns(&placer, 0, 3), [3, 3, 3]);
    pools.shutdown();
}

#[test]
fn cpus_isolated_later_get_no_probe_from_then_on() {
    let machine = Machine::synthetic("numa:2 core:4 pu:1").unwrap();
    let (pools, placer) = placer(&machine);
    assert_eq!(turns(&placer, 0, 4), [0, 1, 2, 3]);
    machine.set_isolated(&"0-1".parse().unwrap());
    assert_eq!(turns(&placer, 0, 3), [2, 3, 2]);
    pools.shutdown();
}

#[test]
fn a_node_whose_cpus_are_all_isolated_is_no_place() {
    let isolated: CpuSet = "0-3".parse().unwrap();
    let topology = Topology::synthetic("numa:2 core:4 pu:1").unwrap().with_isolated(&isolated);
    let (pools, placer) = placer(&Machine::new(topology));
    assert_eq!(placer.choose(Path::Sync, Some(0)), (Place::Inline, None));
    assert_eq!(placer.choose(Path::Async, Some(0)), (Place::Anywhere, None));
    pools.shutdown();
}

#[test]
fn a_node_that_goes_offline_is_no_place_any_more_and_no_node_is_not_node_zero() {
    let machine = Machine::synthetic("numa:2 core:2 pu:1").unwrap();
    let (pools, placer) = placer(&machine);
    assert_eq!(placer.choose(Path::Sync, Some(0)).0, Place::Near);
    assert_eq!(placer.choose(Path::Sync, None), (Place::Inline, None));
    assert_eq!(placer.choose(Path::Sync, Some(7)), (Place::Inline, None));
    for cpu in 0..2 {
        machine.set_online(cpu, false).unwrap();
    }
    assert_eq!(placer.choose(Path::Sync, Some(0)), (Place::Inline, None));
    assert_eq!(placer.choose(Path::Async, Some(0)), (Place::Anywhere, None));
    pools.shutdown();
}

#[test]
fn a_synchronous_call_waits_and_runs_near_its_node_once() {
    let (pools, placer) = placer(&Machine::synthetic("numa:2 core:2 pu:1").unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    let inner = std::sync::Arc::new(placer);
    let again = inner.clone();
    inner.call(Some(1), move |cpu| {
        // Already on that node: the second call runs here, and is not queued.
        let outer = std::thread::current().id();
        let nested = tell.clone();
        again.call(Some(1), move |placed| {
            nested.send((placed, std::thread::current().id() == outer)).unwrap();
        });
        tell.send((cpu, Placement::current().and_then(|t| t.node) == Some(1))).unwrap();
    });
    assert_eq!(told.try_recv(), Ok((None, true)));
    assert_eq!(told.try_recv(), Ok((Some(2), true)));
    pools.shutdown();
}
