//! Setup that tests of workqueues begin with.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::context::Placement;
use corewise_topology::{AffinityScope, CpuId, Machine};
use corewise_workqueue::{
    At, PoolsBuilder, QueueBuilder, Work, WorkerPools, WorkerThread, Workqueue,
};

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

/// Returns the builder of pools for `cpus` CPUs, of at most `max_workers` each.
pub(crate) fn capped(cpus: u32, max_workers: usize) -> PoolsBuilder {
    WorkerPools::builder(&machine(cpus)).max_workers(max_workers)
}

/// Runs a worker on a thread with a small stack: a spawn handler.
pub(crate) fn on_small_stack(worker: WorkerThread) -> std::io::Result<()> {
    std::thread::Builder::new().stack_size(256 << 10).spawn(|| worker.run()).map(drop)
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

/// Returns such a queue on pools that find no item at its core: items keep theirs as long as they
/// need.
pub(crate) fn undisturbed(cpus: u32) -> (WorkerPools, Workqueue) {
    let pools = WorkerPools::builder(&machine(cpus)).cpu_intensive_after(Duration::ZERO).build();
    let queue = builder().build(&pools).expect("a queue");
    (pools, queue)
}

/// Returns the pod that the calling item's worker belongs to.
pub(crate) fn pod() -> Option<u32> {
    Placement::current().and_then(|placed| placed.pod)
}

/// Returns the pod whose pool runs the items queued on this CPU.
pub(crate) fn pod_of(queue: &Workqueue, cpu: u32) -> Option<u32> {
    queue.at(At::Cpu(CpuId::new(cpu))).spawn(pod).join().expect("no panic")
}

/// Runs `body` as an item of the queue, and waits for it.
pub(crate) fn inside<T: Send + 'static>(
    queue: &Workqueue,
    body: impl FnOnce(&Workqueue) -> T + Send + 'static,
) -> T {
    let own = queue.clone();
    queue.spawn(move || body(&own)).join().expect("no panic")
}

/// Queues an item on `cpu` that waits for the returned event, and waits until it runs.
pub(crate) fn block(queue: &Workqueue, cpu: u32) -> Arc<Completion> {
    let (gate, started) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (waits, says) = (Arc::clone(&gate), Arc::clone(&started));
    drop(queue.at(At::Cpu(CpuId::new(cpu))).spawn(move || {
        says.complete();
        waits.wait();
    }));
    started.wait();
    gate
}

/// Keeps a worker busy, without a wait that the pool knows of, until the returned event completes.
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
