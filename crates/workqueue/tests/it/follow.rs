//! The pools follow the machine: CPUs that go and come, a cpuset that is narrowed, isolated CPUs.
//!
//! The machines are synthetic, and their workers aren't pinned: they count as running on the CPUs
//! in the report. The machine that the tests run on changes in `live_follow.rs`.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine, current_cpu, pin_current_thread};
use corewise_workqueue::{
    At, PoolReport, QueueBuilder, QueueKind, Queued, Work, WorkerPools, Workqueue,
};

use crate::setup::{pod, pod_of};
use crate::spin::spin_until;

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// Returns two nodes of four CPUs.
fn machine() -> (Machine, WorkerPools) {
    let machine = Machine::synthetic("numa:2 l3:1 core:4 pu:1").unwrap();
    let pools = WorkerPools::new(&machine);
    (machine, pools)
}

fn queue(pools: &WorkerPools, build: impl FnOnce(QueueBuilder) -> QueueBuilder) -> Workqueue {
    build(Workqueue::builder("test")).build(pools).unwrap()
}

fn offline(machine: &Machine, cpus: &str) {
    for cpu in &set(cpus) {
        assert!(machine.set_online(cpu, false).unwrap());
    }
}

fn online(machine: &Machine, cpus: &str) {
    for cpu in &set(cpus) {
        assert!(machine.set_online(cpu, true).unwrap());
    }
}

/// Returns the pool of a pod.
fn pool(pools: &WorkerPools, pod: u32) -> PoolReport {
    pools.report().into_iter().find(|pool| pool.pod == pod).unwrap()
}

/// Returns the CPUs on which the pools' workers run, by pod, and `away` if these aren't the pod's.
fn places(pools: &WorkerPools) -> Vec<String> {
    let place = |pool: PoolReport| format!("{}{}", pool.cpus, if pool.away { " away" } else { "" });
    pools.report().into_iter().map(place).collect()
}

#[test]
fn cpu_down_the_masks_of_its_pods_are_recomputed_and_cpu_up_they_are_as_before() {
    let (machine, pools) = machine();
    let _queue = queue(&pools, |b| b.scope(AffinityScope::Numa));
    assert_eq!(places(&pools), ["0-3", "4-7"]);
    offline(&machine, "1,6-7");
    assert_eq!(places(&pools), ["0,2-3", "4-5"]);
    online(&machine, "1,6-7");
    assert_eq!(places(&pools), ["0-3", "4-7"]);
}

#[test]
fn cpu_down_a_bound_pool_loses_its_cpu_and_goes_on_and_cpu_up_it_is_bound_again() {
    let (machine, pools) = machine();
    let queue = queue(&pools, |q| q.kind(QueueKind::Bound));
    offline(&machine, "2");
    let place = pool(&pools, 2);
    assert_eq!((place.cpus, place.away), (set("0-1,3-7"), true));
    assert_eq!(pod_of(&queue, 2), Some(2), "its work is still its pool's");
    online(&machine, "2");
    let place = pool(&pools, 2);
    assert_eq!((place.cpus, place.away), (set("2"), false));
    assert_eq!(pod_of(&queue, 2), Some(2));
}

#[test]
fn cpu_down_work_queued_for_it_still_runs() {
    let (machine, pools) = machine();
    let queue = queue(&pools, |b| b.scope(AffinityScope::Cpu).strict(true));
    // The CPU's only worker is busy when the rest is queued, and when the CPU goes.
    let (gate, started) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (waits, rings) = (Arc::clone(&gate), Arc::clone(&started));
    let busy = queue.at(At::Cpu(CpuId::new(5))).spawn(move || {
        rings.complete();
        // The item doesn't declare this to the pool: it keeps its place.
        spin_until(|| waits.is_complete());
    });
    started.wait();
    let waiting: Vec<_> = (0..3).map(|_| queue.at(At::Cpu(CpuId::new(5))).spawn(pod)).collect();
    offline(&machine, "5");
    gate.complete();
    busy.join().unwrap();
    for item in waiting {
        assert_eq!(item.join().unwrap(), Some(5), "strict: no other pod takes it");
    }
}

#[test]
fn all_workers_of_a_pod_whose_last_cpu_leaves_lose_affinity_and_may_run_anywhere() {
    let (machine, pools) = machine();
    let queue = queue(&pools, |b| b.scope(AffinityScope::Numa));
    offline(&machine, "4-6");
    assert_eq!(places(&pools), ["0-3", "7"]);
    offline(&machine, "7");
    assert_eq!(places(&pools), ["0-3", "0-3 away"]);
    assert!(queue.at(At::Cpu(CpuId::new(6))).spawn(|| ()).join().is_ok());
    online(&machine, "5");
    assert_eq!(places(&pools), ["0-3", "5"], "and its workers come home");
}

#[test]
fn a_cpuset_that_is_narrowed_and_widened_moves_the_workers() {
    let (machine, pools) = machine();
    let queue = queue(&pools, |b| b.scope(AffinityScope::Numa));
    machine.set_allowed(&set("0-1")).unwrap();
    assert_eq!(places(&pools), ["0-1", "0-1 away"]);
    assert!(queue.at(At::Cpu(CpuId::new(5))).spawn(|| ()).join().is_ok());
    machine.set_allowed(&set("0-7")).unwrap();
    assert_eq!(places(&pools), ["0-3", "4-7"]);
}

#[test]
fn pods_and_pools_keep_their_numbers_while_cpus_go() {
    let (machine, pools) = machine();
    let before = pools.pods().clone();
    offline(&machine, "0-3");
    let queue = queue(&pools, |b| b.scope(AffinityScope::Numa));
    assert_eq!(places(&pools), ["4-7 away", "4-7"], "made while a whole pod is offline");
    assert_eq!(pools.pods(), &before);
    online(&machine, "2");
    assert_eq!(places(&pools), ["2", "4-7"]);
    assert_eq!(pod_of(&queue, 0), Some(0));
    assert_eq!(pod_of(&queue, 4), Some(1));
}

#[test]
fn a_machine_that_changes_while_pools_are_made_is_followed_by_all_of_them() {
    let (machine, pools) = machine();
    let flips = {
        let machine = machine.clone();
        std::thread::spawn(move || {
            for _ in 0..200 {
                offline(&machine, "7");
                online(&machine, "7");
            }
            offline(&machine, "6-7");
        })
    };
    let mut queues = Vec::new();
    for scope in AffinityScope::ALL {
        for strict in [false, true] {
            queues.push(queue(&pools, |b| b.scope(scope).strict(strict)));
        }
    }
    flips.join().unwrap();
    for report in pools.report() {
        assert!(report.cpus.is_subset(&set("0-5")), "{report:?}");
    }
}

#[test]
fn work_without_a_place_goes_round_the_pods_that_have_cpus() {
    let (machine, pools) = machine();
    let queue = queue(&pools, |b| b.scope(AffinityScope::Cpu).strict(true));
    offline(&machine, "0-2,5");
    for _ in 0..16 {
        // There is no CPU 99.
        let pod = pod_of(&queue, 99).unwrap();
        assert!(set("3-4,6-7").contains(CpuId::new(pod)), "pod {pod}");
    }
    for _ in 0..4 {
        let pod = queue.at(At::Node(1)).spawn(pod).join().unwrap().unwrap();
        assert!(set("4,6-7").contains(CpuId::new(pod)), "pod {pod}");
    }
}

#[test]
fn unbound_work_without_a_cpu_is_local_if_that_is_allowed_and_else_goes_round_robin() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let (machine, pools) = machine();
    let queue = queue(&pools, |b| b.scope(AffinityScope::Cpu).strict(true));
    let own = current_cpu().unwrap();
    pin_current_thread(&CpuSet::from_iter([own])).unwrap();
    let pods = || {
        let pods = (0..4).map(|_| queue.spawn(pod).join().unwrap().unwrap());
        pods.collect::<Vec<_>>()
    };
    let mut others = set("0-7");
    others.remove(own);
    assert!(machine.set_isolated(&others));
    assert!(
        machine
            .topology()
            .cpu_set()
            .contains(own)
            .then(pods)
            .is_none_or(|p| p == [own.number(); 4])
    );

    let [first, second] = [others.first().unwrap(), others.last().unwrap()];
    let pods_wanted = [first, first, second, second].map(CpuId::number);
    let isolated = set("0-7").difference(&[first, second].into_iter().collect());
    assert!(machine.set_isolated(&isolated));
    let mut pods = pods();
    pods.sort_unstable();
    assert_eq!(pods, pods_wanted);
    // That holds for items queued later from a remembered CPU, too.
    let placed = queue.spawn_future(async { pod() }).join().unwrap().unwrap();
    assert!(placed == first.number() || placed == second.number(), "pod {placed}");
    let (tell, told) = std::sync::mpsc::channel();
    let work = Work::new(move || tell.send(pod().unwrap()).unwrap());
    assert_eq!(queue.queue_delayed(&work, std::time::Duration::from_millis(1)), Ok(Queued::Now));
    let pod = told.recv().unwrap();
    assert!(pod == first.number() || pod == second.number(), "pod {pod}");
}

#[test]
fn pools_that_are_gone_are_not_told() {
    let (machine, pools) = machine();
    let queue = queue(&pools, |b| b);
    drop(queue);
    pools.shutdown();
    offline(&machine, "1");
    drop(pools);
    online(&machine, "1");
}

#[test]
fn a_described_machine_needs_no_thread_to_be_followed() {
    let (machine, _) = machine();
    let pools = WorkerPools::builder(&machine).follow(true).build();
    let _queue = queue(&pools, |b| b.scope(AffinityScope::Numa));
    offline(&machine, "1");
    assert_eq!(places(&pools), ["0,2-3", "4-7"]);
    pools.shutdown();
}
