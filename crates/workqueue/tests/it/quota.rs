//! The number of items that run at once: the worth of the CPU quota, or the user's own number.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::context::Placement;
use corewise_topology::{AffinityScope, CpuId, CpuQuota, Machine};
use corewise_workqueue::{At, JoinHandle, WorkerPools, Workqueue};

use crate::spin::spin_until;

/// Returns a quota of this many milliseconds in each 100.
fn quota(millis: u64) -> Option<CpuQuota> {
    CpuQuota::new(Duration::from_millis(millis), Duration::from_millis(100))
}

fn queue(pools: &WorkerPools, scope: AffinityScope) -> Workqueue {
    Workqueue::builder("test").scope(scope).build(pools).unwrap()
}

fn concurrency(pools: &WorkerPools) -> Vec<usize> {
    pools.report().iter().map(|pool| pool.concurrency).collect()
}

/// Items that hold a core until the test ends them.
struct Busy {
    running: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    items: Vec<JoinHandle<()>>,
}

impl Busy {
    fn new(queue: &Workqueue, items: usize) -> Busy {
        let (running, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let item = |_| {
            let (running, stop) = (Arc::clone(&running), Arc::clone(&stop));
            queue.spawn(move || {
                running.fetch_add(1, Ordering::SeqCst);
                spin_until(|| stop.load(Ordering::SeqCst));
            })
        };
        let items = (0..items).map(item).collect();
        Busy { running, stop, items }
    }

    fn until(&self, running: usize) {
        spin_until(|| self.running.load(Ordering::SeqCst) >= running);
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.items.into_iter().for_each(|item| item.join().unwrap());
    }
}

#[test]
fn as_many_items_run_at_once_as_the_quota_is_worth_and_that_is_followed() {
    let machine = Machine::synthetic("numa:1 l3:1 core:4 pu:1").unwrap();
    machine.set_cpu_quota(quota(290));
    // Otherwise, the timekeeper could find that they compute for long, and let others start beside
    // them.
    let pools = WorkerPools::builder(&machine).cpu_intensive_after(Duration::ZERO).build();
    let queue = queue(&pools, AffinityScope::System);
    assert_eq!(concurrency(&pools), [2]);
    let busy = Busy::new(&queue, 8);
    busy.until(2);
    let report = &pools.report()[0];
    assert_eq!((report.workers, report.idle, busy.running.load(Ordering::SeqCst)), (2, 0, 2));
    machine.set_cpu_quota(quota(390));
    busy.until(3);
    machine.set_cpu_quota(None);
    busy.until(4);
    assert_eq!(concurrency(&pools), [4]);
    machine.set_cpu_quota(quota(10));
    assert_eq!(concurrency(&pools), [1], "and never less");
    busy.end();
}

#[test]
fn the_pods_of_a_scope_share_the_quota_by_their_cpus() {
    let machine = Machine::synthetic("numa:2 l3:1 core:4 pu:1").unwrap();
    machine.set_cpu_quota(quota(300));
    let pools = WorkerPools::new(&machine);
    let _numa = queue(&pools, AffinityScope::Numa);
    assert_eq!(concurrency(&pools), [1, 2]);
    machine.set_cpu_quota(quota(600));
    assert_eq!(concurrency(&pools), [3, 3]);
    machine.set_online(CpuId::new(7), false).unwrap();
    assert_eq!(concurrency(&pools), [3, 3], "six CPUs of seven");
    machine.set_cpu_quota(quota(100));
    assert_eq!(concurrency(&pools), [1, 1], "one at least: a pod's own work must go on");
}

/// Workers that aren't idle.
fn at_work(pools: &WorkerPools) -> usize {
    pools.report().iter().map(|pool| pool.workers - pool.idle).sum()
}

#[test]
fn more_pods_than_the_quota_has_cpus_run_no_more_than_it_is_worth_but_what_is_for_one_of_them() {
    let machine = Machine::synthetic("numa:2 l3:2 core:2 pu:1").unwrap();
    machine.set_cpu_quota(quota(200));
    let pools = WorkerPools::builder(&machine).cpu_intensive_after(Duration::ZERO).build();
    let queue = queue(&pools, AffinityScope::Cache);
    let busy = Busy::new(&queue, 12);
    busy.until(2);
    while at_work(&pools) != 2 {
        assert!(busy.running.load(Ordering::SeqCst) <= 2);
        std::thread::yield_now();
    }
    // The pods of these CPUs have no share. The item isn't joined here: that would run it on this
    // thread.
    let (tell, told) = std::sync::mpsc::channel();
    for pod in 0..4 {
        let tell = tell.clone();
        let own = move || tell.send(Placement::current().unwrap().pod).unwrap();
        assert!(queue.at(At::Cpu(CpuId::new(2 * pod))).execute(own).is_ok());
    }
    let mut ran = std::collections::HashSet::new();
    while ran.len() < 2 {
        assert!(busy.running.load(Ordering::SeqCst) <= 2, "no pod without a share helps");
        ran.extend(told.try_recv());
        std::thread::yield_now();
    }
    machine.set_cpu_quota(None);
    busy.until(8);
    busy.end();
    assert_eq!(told.iter().take(2).count(), 2);
    machine.set_cpu_quota(quota(100));
    let last = Busy::new(&queue, 12);
    last.until(1);
    last.stop.store(true, Ordering::SeqCst);
    pools.shutdown();
    assert_eq!(last.running.load(Ordering::SeqCst), 12, "what is queued runs, wherever it lies");
}

#[test]
fn the_concurrency_that_was_set_holds_whatever_the_quota() {
    let machine = Machine::synthetic("numa:1 l3:1 core:4 pu:1").unwrap();
    machine.set_cpu_quota(quota(200));
    for (set, wanted) in [(0, 1), (1, 1), (3, 3), (usize::MAX, 4)] {
        let pools = WorkerPools::builder(&machine).concurrency(set).build();
        let _queue = queue(&pools, AffinityScope::System);
        assert_eq!(concurrency(&pools), [wanted], "{set}");
    }
    let pools = WorkerPools::builder(&machine).concurrency(1).build();
    let queue = queue(&pools, AffinityScope::System);
    machine.set_cpu_quota(None);
    let busy = Busy::new(&queue, 1);
    busy.until(1);
    assert_eq!((concurrency(&pools), pools.report()[0].workers), (vec![1], 1));
    busy.end();
}

#[test]
fn a_dump_says_the_quota() {
    let machine = Machine::synthetic("core:4 pu:1").unwrap();
    let pools = WorkerPools::new(&machine);
    assert_eq!(pools.dump().cpu_quota, None);
    machine.set_cpu_quota(quota(150));
    assert_eq!(pools.dump().cpu_quota, quota(150));
}
