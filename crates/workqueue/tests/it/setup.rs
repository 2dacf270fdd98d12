//! Setup that tests of workqueues begin with.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{QueueBuilder, Work, WorkerPools, Workqueue};

use crate::spin::spin_until;

/// Returns a machine of one cache with `cpus` CPUs.
pub(crate) fn machine(cpus: u32) -> Machine {
    Machine::synthetic(&format!("numa:1 l3:1 core:{cpus} pu:1")).expect("a valid description")
}

/// Pools for such a machine.
pub(crate) fn pools(cpus: u32) -> WorkerPools {
    WorkerPools::new(&machine(cpus))
}

/// Pools for a machine of this description.
pub(crate) fn described(description: &str) -> WorkerPools {
    WorkerPools::new(&Machine::synthetic(description).expect("a valid description"))
}

/// Returns the builder of a queue whose items run anywhere.
pub(crate) fn builder() -> QueueBuilder {
    Workqueue::builder("test").scope(AffinityScope::System)
}

/// Returns such a queue on pools for `cpus` CPUs.
pub(crate) fn queue(cpus: u32) -> (WorkerPools, Workqueue) {
    let pools = pools(cpus);
    let queue = builder().build(&pools).expect("a queue");
    (pools, queue)
}

/// Keeps a worker busy, without a wait that the pool knows of, until what this returns completes.
pub(crate) fn occupy(queue: &Workqueue) -> Arc<Completion> {
    let (gate, started) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (inside, here) = (Arc::clone(&gate), Arc::clone(&started));
    drop(queue.spawn(move || {
        here.complete();
        spin_until(|| inside.is_complete());
    }));
    started.wait();
    gate
}

/// Returns an item, and how often it has run.
pub(crate) fn counting() -> (Work, Arc<AtomicUsize>) {
    let runs = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&runs);
    let work = Work::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    (work, runs)
}
