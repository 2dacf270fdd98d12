//! The numbers of threads of the pools: in all, and after a while.

use std::sync::{Arc, Mutex};

use corewise_sync::Completion;
use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine};
use corewise_workqueue::{JoinHandle, PoolReport, WorkerPools, Workqueue};

use crate::setup::machine;
use crate::spin::spin_until;

fn queue(pools: &WorkerPools, scope: AffinityScope) -> Workqueue {
    Workqueue::builder("blockers").scope(scope).build(pools).unwrap()
}

/// Queues items that block, declared, until the gate is open.
fn blockers(queue: &Workqueue, gate: &Arc<Completion>, items: usize) -> Vec<JoinHandle<()>> {
    let item = |_| {
        let gate = Arc::clone(gate);
        queue.spawn(move || gate.wait())
    };
    (0..items).map(item).collect()
}

fn until(pools: &WorkerPools, pool: usize, is: impl Fn(&PoolReport) -> bool) {
    spin_until(|| is(&pools.report()[pool]));
}

#[test]
fn all_pools_together_have_no_more_threads_than_they_may_but_each_has_some() {
    let pools = WorkerPools::builder(&machine(2)).max_threads(30).build();
    assert_eq!(pools.max_workers(), 30);
    let gate = Arc::new(Completion::new());
    let one = queue(&pools, AffinityScope::Numa);
    let mut items = blockers(&one, &gate, 100);
    // A worker that the pool asks for counts for a moment, until there is no thread for it.
    until(&pools, 0, |pool| pool.blocked >= 30 && pool.workers <= 30);
    // There are threads for two cores, and eight more.
    let other = queue(&pools, AffinityScope::System);
    items.extend(blockers(&other, &gate, 100));
    until(&pools, 1, |pool| pool.blocked >= 10 && pool.workers <= 10);
    assert_eq!((pools.report()[0].blocked, pools.report()[1].blocked), (30, 10));
    gate.complete();
    items.into_iter().for_each(|item| item.join().unwrap());
    // Threads that have left make room again.
    drop((one, other));
    let gate = Arc::new(Completion::new());
    let items = blockers(&queue(&pools, AffinityScope::System), &gate, 30);
    until(&pools, 1, |pool| pool.blocked >= 20);
    gate.complete();
    items.into_iter().for_each(|item| item.join().unwrap());
}

#[test]
fn after_a_burst_of_blockers_the_workers_that_only_it_needed_leave_within_seconds() {
    let pools = WorkerPools::new(&machine(2));
    let (queue, gate) = (queue(&pools, AffinityScope::Numa), Arc::new(Completion::new()));
    let items = blockers(&queue, &gate, 200);
    until(&pools, 0, |pool| pool.blocked == 200);
    gate.complete();
    items.into_iter().for_each(|item| item.join().unwrap());
    // Work that continues meanwhile keeps its own workers, one a CPU, beside as many that stay in
    // any case.
    until(&pools, 0, |pool| {
        queue.spawn(|| ()).join().unwrap();
        pool.workers <= 4
    });
}

#[test]
fn a_worker_that_is_pinned_to_one_cpu_makes_the_next_one_where_all_cpus_of_the_pod_may_run_it() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let machine = Machine::live().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let pools = WorkerPools::builder(&machine)
        .spawn_handler(move |worker| {
            let may_use: CpuSet = corewise_sync::sys::affinity(None)
                .expect("Linux tells")
                .iter()
                .map(CpuId::new)
                .collect();
            sees.lock().unwrap().push(may_use);
            std::thread::Builder::new().spawn(move || worker.run()).map(drop)
        })
        .build();
    let queue = queue(&pools, AffinityScope::System);
    let gate = Arc::new(Completion::new());
    // Each worker whose item blocks makes the next worker.
    let items = blockers(&queue, &gate, 4);
    until(&pools, 0, |pool| pool.blocked >= 4);
    gate.complete();
    items.into_iter().for_each(|item| item.join().unwrap());
    let pod = &pools.report()[0].cpus;
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 1, "workers have made workers");
    assert!(seen.iter().all(|may_use| pod.is_subset(may_use)), "{pod} among each of {seen:?}");
}
