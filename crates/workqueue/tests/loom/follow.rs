//! The pools follow the machine while work is pushed and taken: each item has a thread that runs
//! it.
//!
//! A lost wake-up shows as a deadlock, which loom reports. Without the full fences it must.

use std::sync::Arc;

use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::model::must_fail;
use corewise_sync::{Completion, thread};
use corewise_workqueue::{Work, model::PoolModel};

use crate::bounded::{bounded, more_if_long};

/// Returns an item, and an event that is complete once it has run.
fn ringing() -> (Work, Arc<Completion>) {
    let ran = Arc::new(Completion::new());
    let rings = Arc::clone(&ran);
    (Work::new(move || rings.complete()), ran)
}

/// Checks a pod with one usable CPU, which one of its workers holds for good; another worker is
/// idle, or about to be. The pod's second CPU comes at the same time as an item.
fn cpu_comes_against_push<F: FencePolicy>(preemptions: usize) {
    bounded(preemptions).check(|| {
        let pools = PoolModel::<F>::new(1, 2);
        pools.follow(1, &[1]);
        let _busy = pools.enlist(0);
        let worker = pools.enlist(0);
        let (work, ran) = ringing();
        let working = thread::spawn(move || worker.work_until(|| ran.is_complete()));
        let coming = {
            let pools = pools.clone();
            thread::spawn(move || pools.follow(2, &[2]))
        };
        assert!(pools.push(0, &work));
        working.join().unwrap();
        coming.join().unwrap();
    });
}

#[test]
fn loom_follow_a_cpu_that_comes_takes_the_work_that_waits() {
    cpu_comes_against_push::<FullFence>(more_if_long(2));
}

#[test]
fn loom_follow_without_the_fences_a_cpu_that_comes_leaves_work_waiting() {
    let name = "loom_follow_without_the_fences_a_cpu_that_comes_leaves_work_waiting";
    let said = must_fail(name, || cpu_comes_against_push::<NoFence>(3));
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}

/// Checks a pod with two CPUs, one of which a worker holds for good. It loses the other at the same
/// time as an item is pushed: its second worker takes the item, or leaves it to the other pod's.
#[test]
fn loom_follow_a_cpu_that_goes_leaves_its_work_to_somebody() {
    bounded(more_if_long(1)).check(|| {
        let pools = PoolModel::<FullFence>::new(2, 2);
        // The other pod has one CPU, and one worker, so that it makes none.
        pools.follow(1, &[2, 1]);
        let _busy = pools.enlist(0);
        let (home, other) = (pools.enlist(0), pools.enlist(1));
        let own = pools.clone();
        let work = Work::new(move || own.close());
        let going = {
            let pools = pools.clone();
            thread::spawn(move || pools.follow(2, &[1, 1]))
        };
        let working = thread::spawn(move || home.work_until(|| false));
        assert!(pools.push(0, &work));
        // Until the item has run, and has closed the pools.
        other.work_until(|| false);
        working.join().unwrap();
        going.join().unwrap();
    });
}
