//! Rules of "Queueing" and of "Workers and pools" (rule 4.3) that show from outside, one test each.
//! The pool's own transitions are stepped in `src/pool/stepped.rs`.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::context::{self, AtomicSection};
use corewise_topology::{
    AffinityScope, CpuId, CpuSet, Machine, current_affinity, current_cpu, pin_current_thread,
};
use corewise_workqueue::{At, JoinHandle, QueueError, Queued, Work, WorkerPools, Workqueue};

use crate::setup::{described as pools, pod};
use crate::spin::spin_until;

/// Runs an item that computes until the returned switch is set.
fn compute(queue: &Workqueue) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let (stop, inside) = (Arc::new(AtomicBool::new(false)), Arc::new(Completion::new()));
    let (stopped, says) = (Arc::clone(&stop), Arc::clone(&inside));
    let item = queue.spawn(move || {
        says.complete();
        spin_until(|| stopped.load(Ordering::SeqCst));
    });
    inside.wait();
    (stop, item)
}

#[test]
fn manager_rule_an_idle_worker_stands_by_before_an_item_is_processed() {
    let pools = pools("numa:1 l3:1 core:2 pu:1");
    let queue = Workqueue::builder("test").scope(AffinityScope::System).build(&pools).unwrap();
    let (stop, item) = compute(&queue);
    // Nothing else was queued: the worker itself made another before it started the item.
    spin_until(|| pools.report()[0].idle == 1);
    assert_eq!(pools.report()[0].workers, 2);
    stop.store(true, Ordering::SeqCst);
    item.join().unwrap();
}

#[test]
fn manager_rule_no_thread_is_made_beyond_the_one_that_stands_by() {
    let pools = pools("numa:1 l3:1 core:8 pu:1");
    let queue = Workqueue::builder("test").scope(AffinityScope::System).build(&pools).unwrap();
    let one = compute(&queue);
    spin_until(|| pools.report()[0].idle == 1);
    // Six more cores are free, and no thread is made for them before there is work.
    assert_eq!(pools.report()[0].threads_made, 2);
    one.0.store(true, Ordering::SeqCst);
    one.1.join().unwrap();
}

#[test]
fn queue_work_node_stays_on_the_callers_cpu_where_that_lies_in_the_node() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    // Two nodes, each of three shards; this thread stays on one CPU.
    let pools = pools("numa:2 l3:1 core:24 pu:1");
    let queue = Workqueue::builder("test").strict(true).build(&pools).unwrap();
    let cpu = current_cpu().expect("Linux says it");
    pin_current_thread(&CpuSet::from_iter([cpu])).expect("it runs there now");
    let Some(own) = pools.pods().pod_of(AffinityScope::CacheShard, cpu) else {
        return println!("skipped: this machine has more than 48 CPUs, and the test runs on {cpu}");
    };
    for _ in 0..6 {
        let node = At::Node(cpu.number() / 24);
        assert_eq!(queue.at(node).spawn(pod).join().unwrap(), Some(own), "not the next shard");
        assert_eq!(queue.at(At::Here).spawn(pod).join().unwrap(), Some(own), "no node is no wish");
        assert_eq!(queue.at(At::Node(7)).spawn(pod).join().unwrap(), Some(own), "nor one unknown");
    }
}

#[test]
fn a_queue_of_any_name_may_have_a_rescuer() {
    let pools = pools("core:2 pu:1");
    for name in ["", "a\0b", "\u{1f980} and much more than fifteen bytes"] {
        let queue = Workqueue::builder(name).rescuer(true).build(&pools).expect("a queue");
        assert_eq!(queue.spawn(|| 1).join().unwrap(), 1);
    }
}

#[test]
fn affn_strict_also_a_worker_that_looks_for_work_leaves_that_of_other_pods() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // By the clock, an item that waits for a CPU computes: others start beside it.
        return;
    }
    let machine = Machine::synthetic("core:2 pu:1").unwrap();
    // Otherwise, its own pool would start the others beside an item that computes for 10 ms.
    let pools =
        WorkerPools::builder(&machine).cpu_intensive_after(std::time::Duration::ZERO).build();
    let queue =
        Workqueue::builder("test").scope(AffinityScope::Cpu).strict(true).build(&pools).unwrap();
    let (stop, inside) = (Arc::new(AtomicBool::new(false)), Arc::new(Completion::new()));
    let (stopped, says) = (Arc::clone(&stop), Arc::clone(&inside));
    let busy = queue.at(At::Cpu(CpuId::new(0))).spawn(move || {
        says.complete();
        spin_until(|| stopped.load(Ordering::SeqCst));
    });
    inside.wait();
    let waiting: Vec<_> = (0..4).map(|_| queue.at(At::Cpu(CpuId::new(0))).spawn(pod)).collect();
    // The other pod's worker runs its own item, looks for more, and goes idle.
    for _ in 0..4 {
        queue.at(At::Cpu(CpuId::new(1))).queue(&Work::new(|| ())).unwrap();
        spin_until(|| {
            let other = &pools.report()[1];
            other.ran > 0 && other.idle == other.workers
        });
    }
    assert!(!waiting.iter().any(JoinHandle::is_finished));
    stop.store(true, Ordering::SeqCst);
    busy.join().unwrap();
    for item in waiting {
        assert_eq!(item.join().unwrap(), Some(0));
    }
}

#[test]
fn queueing_mod_delayed_cancel_disable_and_enable_are_for_any_context() {
    let pools = pools("core:2 pu:1");
    let queue = Workqueue::builder("test").build(&pools).unwrap();
    let work = Work::new(|| ());
    let hour = std::time::Duration::from_secs(3600);
    let before = context::violations();
    {
        let _section = AtomicSection::enter("the test");
        queue.queue(&work).unwrap();
        queue.mod_delayed(&work, hour).unwrap();
        assert!(work.cancel());
        assert_eq!(queue.queue_delayed(&work, hour), Ok(Queued::Now));
        assert!(work.disable());
        assert_eq!(queue.queue(&work), Err(QueueError::Disabled));
        assert!(work.enable());
        queue.queue(&work).unwrap();
    }
    assert_eq!(context::violations(), before);
}

#[test]
fn a_worker_that_has_the_callers_cpu_moves_to_the_one_that_the_item_is_for() {
    if !corewise_sync::sys::KERNEL_THREADS {
        // No thread can be pinned.
        return;
    }
    let may_use = current_affinity().unwrap().unwrap();
    let mut cpus = may_use.iter();
    let (Some(here), Some(other)) = (cpus.next(), cpus.next()) else {
        return eprintln!("skipped: there is one CPU");
    };
    let machine = Machine::live().unwrap();
    pin_current_thread(&CpuSet::from_iter([here])).unwrap();
    // Each pod's only worker is made here.
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("test").build(&pools).unwrap();
    spin_until(|| pools.report().iter().all(|pool| pool.idle == 1));
    let (tell, told) = std::sync::mpsc::channel();
    queue.at(At::Cpu(other)).execute(move || tell.send(current_cpu()).unwrap()).unwrap();
    assert_eq!(told.recv().unwrap(), Some(other));
}
