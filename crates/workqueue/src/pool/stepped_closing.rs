//! Taking back what comes to a closed pool.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_topology::{AffinityScope, CpuId, Machine};

use crate::attributes::At;
use crate::error::Queued;
use crate::timekeeper::{Settings, Timekeeper};
use crate::{Work, WorkerPools, Workqueue};

#[test]
fn held_items_can_be_cancelled_also_in_closed_pools_with_busy_workers() {
    // Without a thread that looks at the pools now and then.
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("a valid description");
    let pools =
        WorkerPools::builder(&machine).keeper(&Timekeeper::by_hand(Settings::default())).build();
    let builder = || Workqueue::builder("closing").scope(AffinityScope::Cpu).strict(true);
    let plain = builder().build(&pools).expect("a queue");
    let limited = builder().max_active(1).build(&pools).expect("a queue");
    let (started, go) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (says, waits) = (Arc::clone(&started), Arc::clone(&go));
    // Without telling the pool, so that no other worker starts.
    let busy = plain.at(At::Cpu(CpuId::new(0))).spawn(move || {
        says.complete();
        while !waits.is_complete() {
            std::thread::yield_now();
        }
    });
    started.wait();
    let (active, held) = (Work::new(|| ()), Work::new(|| ()));
    assert_eq!(limited.at(At::Cpu(CpuId::new(0))).queue(&active), Ok(Queued::Now));
    assert_eq!(limited.at(At::Cpu(CpuId::new(0))).queue(&held), Ok(Queued::Now));
    assert_eq!((limited.active(), limited.held()), (1, 1));
    let shutdown = {
        let pools = pools.clone();
        std::thread::spawn(move || pools.shutdown())
    };
    // The pool of CPU 0 is closed before that of CPU 1, whose worker then leaves.
    while pools.report().iter().any(|pool| pool.pod == 1 && pool.workers > 0) {
        std::thread::yield_now();
    }
    assert!(active.cancel(), "its place goes to the one that was held back");
    assert!(held.cancel(), "which lies in the pool now");
    go.complete();
    shutdown.join().expect("no panic");
    busy.join().expect("it ran");
    assert_eq!(limited.stats().cancelled, 2);
}
