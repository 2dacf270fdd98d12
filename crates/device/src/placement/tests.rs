//! Tests of the placer against synthetic machines; nothing here depends on real CPUs.
//! `tests/it/placement.rs` tests the whole path of a probe.

use super::*;
use corewise_topology::{CpuId, CpuSet, Topology};
use std::sync::{Arc, mpsc};
use std::thread;

fn placer(machine: &Machine) -> (WorkerPools, Arc<Placer>) {
    let pools = WorkerPools::new(machine);
    let placer = Placer::new(&pools).unwrap();
    (pools, Arc::new(placer))
}

fn choose(placer: &Placer, path: Path, node: Option<u32>) -> Choice {
    placer.choose(path, node, false)
}

fn turns(placer: &Placer, node: u32, n: usize) -> Vec<u32> {
    (0..n).map(|_| choose(placer, Path::Async, Some(node)).1.unwrap().number()).collect()
}

fn token_node() -> Option<u32> {
    Placement::current().and_then(|token| token.node)
}

#[test]
fn rules_10_and_13_probes_of_one_node_rotate_over_its_shards_cores_and_siblings_not_isolated_ones()
{
    // Two shards of eight cores on each node. The numbering of many servers: CPUs 0-3 and 8-11 on
    // node 0, n and n + 8 share a core. And three isolated CPUs of four.
    let far = "numa:2 l3:1 core:4 pu:2(indexes=2*8:8*1)";
    let siblings: Vec<u32> =
        Topology::synthetic(far).unwrap().cpus().iter().filter_map(|c| c.core).collect();
    assert_eq!(siblings[0], siblings[8], "the description says what the test is about");
    for (machine, isolated, node, expected) in [
        ("numa:2 l3:1 core:16 pu:1", "", 1, &[16, 24, 17, 25][..]),
        ("numa:2 l3:1 core:16 pu:1", "", 0, &[0, 8, 1, 9]),
        (far, "", 0, &[0, 1, 2, 3, 8, 9, 10, 11]),
        (far, "", 1, &[4, 5, 6, 7, 12]),
        ("numa:2 core:4 pu:1", "0-2", 0, &[3, 3, 3]),
    ] {
        let topology = Topology::synthetic(machine).unwrap();
        let topology = topology.with_isolated(&isolated.parse().unwrap());
        let (pools, placer) = placer(&Machine::new(topology));
        assert_eq!(turns(&placer, node, expected.len()), expected, "{machine}, node {node}");
        pools.shutdown();
    }
}

#[test]
fn probes_that_help_the_caller_go_to_each_shard_in_turn() {
    let (pools, placer) = placer(&Machine::synthetic("numa:2 l3:1 core:2 pu:1").unwrap());
    // This is only the choice: the queue decides where a probe then runs, and lets an idle pod take
    // over from a busy one.
    let cpus = (0..8).map(|_| placer.choose_elsewhere().1.map(CpuId::number));
    assert_eq!(cpus.collect::<Vec<_>>(), [0, 2, 1, 3, 0, 2, 1, 3].map(Some));
    let (tell, told) = mpsc::channel();
    for _ in 0..8 {
        let tell = tell.clone();
        placer.spawn_elsewhere(move || tell.send(token_node()).unwrap());
    }
    drop(tell);
    assert_eq!(told.iter().flatten().count(), 8, "each runs on a worker of a node");
    pools.shutdown();
}

#[test]
fn rule_13_a_node_whose_cpus_are_all_isolated_runs_it_inline() {
    let isolated: CpuSet = "0-3".parse().unwrap();
    let topology = Topology::synthetic("numa:2 core:4 pu:1").unwrap().with_isolated(&isolated);
    let (pools, placer) = placer(&Machine::new(topology));
    assert_eq!(choose(&placer, Path::Sync, Some(0)), (Place::Inline, None));
    assert_eq!(choose(&placer, Path::Async, Some(0)), (Place::Anywhere, None));
    pools.shutdown();
}

#[test]
fn rule_14_cpus_isolated_later_get_no_probe_from_then_on() {
    let machine = Machine::synthetic("numa:2 core:4 pu:1").unwrap();
    let (pools, placer) = placer(&machine);
    assert_eq!(turns(&placer, 0, 4), [0, 1, 2, 3]);
    assert_eq!(turns(&placer, 1, 1), [4]);
    machine.set_isolated(&"0-1,4".parse().unwrap());
    // Each node follows the change, whichever is asked first.
    assert_eq!(turns(&placer, 0, 3), [2, 3, 2]);
    assert_eq!(turns(&placer, 1, 2), [5, 6]);
    pools.shutdown();
}

/// Returns where a probe runs in the interleaving of rule 14: Choose, then the masks change, then
/// QueueAt.
fn runs_after(change: impl FnOnce(&Machine)) -> CpuSet {
    // Two nodes of one shard each, so that a pod's CPUs are a node's.
    let machine = Machine::synthetic("numa:2 l3:1 core:2 pu:1").unwrap();
    let (pools, placer) = placer(&machine);
    let choice = choose(&placer, Path::Async, Some(0));
    assert_eq!(choice, (Place::Near, Some(CpuId::new(0))));
    change(&machine);
    let (tell, told) = mpsc::channel();
    let seen = pools.clone();
    placer.queue_at(choice, move |_| {
        let pod = Placement::current().and_then(|token| token.pod);
        let report = seen.report().into_iter().find(|pool| Some(pool.pod) == pod);
        tell.send(report.map(|pool| pool.cpus).unwrap_or_default()).unwrap();
    });
    let ran = told.recv().expect("it is run, whatever has changed");
    pools.shutdown();
    ran
}

#[test]
fn rule_14_a_cpu_isolated_between_choice_and_queueing_is_not_run_on() {
    let isolate = |cpus: &str| {
        let cpus: CpuSet = cpus.parse().unwrap();
        runs_after(move |machine| assert!(machine.set_isolated(&cpus))).to_string()
    };
    assert_eq!(isolate("0"), "1", "its neighbour takes over");
    assert_eq!(isolate("0-1"), "2-3", "the other node takes over");
}

#[test]
fn rule_14_a_cpu_that_goes_offline_between_choice_and_queueing_costs_locality_only() {
    let cpus = runs_after(|machine| {
        machine.set_online(CpuId::new(0), false).unwrap();
        machine.set_online(CpuId::new(1), false).unwrap();
    });
    assert_eq!(cpus.to_string(), "2-3");
}

#[test]
fn rule_9_an_unknown_or_offline_node_is_no_place_and_no_node_is_not_node_zero() {
    let machine = Machine::synthetic("numa:2 core:2 pu:1").unwrap();
    let (pools, placer) = placer(&machine);
    assert_eq!(choose(&placer, Path::Sync, Some(0)).0, Place::Near);
    assert_eq!(choose(&placer, Path::Sync, None), (Place::Inline, None));
    assert_eq!(choose(&placer, Path::Async, None), (Place::Anywhere, None));
    // The kernel's -1, and the number after the last.
    for unknown in [u32::MAX, 2, 7] {
        assert_eq!(choose(&placer, Path::Sync, Some(unknown)), (Place::Inline, None));
        assert_eq!(choose(&placer, Path::Async, Some(unknown)), (Place::Anywhere, None));
    }
    for cpu in 0..2 {
        machine.set_online(CpuId::new(cpu), false).unwrap();
    }
    assert_eq!(choose(&placer, Path::Sync, Some(0)), (Place::Inline, None));
    assert_eq!(choose(&placer, Path::Async, Some(0)), (Place::Anywhere, None));
    pools.shutdown();
}

/// Returns the CPUs on which the system lets this thread run.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:"));
    line.expect("every kernel says it").to_owned()
}

#[test]
fn rule_11_the_caller_s_own_cpu_counts_on_the_live_machine_and_nobody_is_pinned() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // The CPU of a thread means nothing here.
        return;
    }
    let machine = Machine::live().unwrap();
    let (pools, placer) = placer(&machine);
    let before = allowed_cpus();
    let node = machine.topology().cpus().iter().find_map(|c| c.node);
    let (tell, told) = mpsc::channel();
    let me = thread::current().id();
    let whole = machine.topology().nodes().len() == 1 && machine.masks().isolated.is_empty();
    placer.call(node, move |cpu| tell.send((cpu, thread::current().id() == me)).unwrap());
    let (cpu, inline) = told.recv().unwrap();
    assert!(inline || !whole, "wherever this thread is, it is on the only node");
    assert_eq!(inline, cpu.is_none());
    assert_eq!(allowed_cpus(), before);
    pools.shutdown();
}

#[test]
fn rule_12_a_nested_call_on_the_same_node_runs_in_place_and_is_placed_once() {
    let (pools, inner) = placer(&Machine::synthetic("numa:2 core:2 pu:1").unwrap());
    let (tell, told) = mpsc::channel();
    let again = inner.clone();
    inner.call(Some(1), move |cpu| {
        // Already on that node: the second call runs here, and is not queued.
        let outer = thread::current().id();
        let nested = tell.clone();
        again.call(Some(1), move |placed| {
            nested.send((placed, thread::current().id() == outer)).unwrap();
        });
        tell.send((cpu, token_node() == Some(1))).unwrap();
    });
    assert_eq!(told.try_recv(), Ok((None, true)));
    assert_eq!(told.try_recv(), Ok((Some(CpuId::new(2)), true)));
    pools.shutdown();
}

#[test]
fn rule_12_the_token_is_gone_after_a_probe_also_after_one_that_panicked() {
    let (pools, placer) = placer(&Machine::synthetic("numa:2 core:2 pu:1").unwrap());
    for _ in 0..2 {
        // A caller on a worker of node 0 gets back its own token.
        let (tell, told) = mpsc::channel();
        let nested = placer.clone();
        placer.call(Some(0), move |_| {
            nested.call(Some(1), |_| panic!("on purpose"));
            tell.send(token_node()).unwrap();
        });
        assert_eq!(told.recv().unwrap(), Some(0));
        assert_eq!(token_node(), None, "the caller outside has none");
    }
    pools.shutdown();
}

#[test]
fn nested_calls_across_nodes_end_where_each_pool_has_one_thread() {
    // Each waits for the other's node: with one thread a pool both would wait for ever.
    let machine = Machine::synthetic("numa:2 l3:1 core:1 pu:1").unwrap();
    let pools = WorkerPools::builder(&machine).max_workers(1).build();
    let placer = Arc::new(Placer::new(&pools).unwrap());
    let (tell, told) = mpsc::channel();
    for n in 0..64 {
        let (tell, nested) = (tell.clone(), placer.clone());
        placer.spawn(Some(n % 2), move |_| {
            nested.call(Some(1 - n % 2), move |_| tell.send(n).unwrap());
        });
    }
    drop(tell);
    assert_eq!(told.iter().count(), 64);
    pools.shutdown();
    assert_eq!(placer.nested.load(Ordering::Relaxed), 0);
}

#[test]
fn rule_9_a_call_whose_pools_are_gone_drops_the_probe_unused_and_says_nothing_was_done() {
    let (pools, placer) = placer(&Machine::synthetic("numa:2 core:2 pu:1").unwrap());
    pools.shutdown();
    let (tell, told) = mpsc::channel();
    let tell_async = tell.clone();
    placer.call(Some(1), move |_| tell.send(()).unwrap());
    placer.spawn(Some(1), move |_| tell_async.send(()).unwrap());
    assert!(told.recv().is_err(), "both were dropped, and neither was run");
}
