//! Corewise's queues behind the workloads' traits.

use corewise_sync::Unparker;
use corewise_topology::{AffinityScope, CpuSet, Machine};
use corewise_workqueue::{Idle, Queued, Work, WorkerPools, Workqueue, blocking};

use crate::names::Place;
use crate::start::Pools;
use crate::workqueue::runtime::{Reuse, Spawn};
use crate::workqueue::tiny::Tiny;
use crate::{BenchError, Job};

/// A workqueue on pools of its own, and their owner. Dropping it shuts them down. The queue is
/// unbound and soft, unless it has one worker on one CPU.
#[derive(Debug)]
pub struct Corewise {
    queue: Workqueue,
    _pools: Pools,
}

impl Corewise {
    /// Creates a queue of this scope, on pools with this shard size. If the job has one pinned
    /// worker, the queue's one pod is that CPU. `idle` is the policy of idle workers.
    ///
    /// # Errors
    /// The queue couldn't be built.
    pub fn new(
        job: &Job,
        machine: &Machine,
        place: Place,
        idle: Idle,
    ) -> Result<Corewise, BenchError> {
        let pools = WorkerPools::builder(machine).shard_size(place.shard_size).idle(idle).build();
        let queue = match job.worker_cpu {
            None => Workqueue::builder(format!("bench/{place}")).scope(place.scope),
            Some(cpu) => Workqueue::builder(format!("bench/on/{cpu}"))
                .scope(AffinityScope::Cpu)
                .cpus(CpuSet::from_iter([cpu]))
                .strict(true),
        };
        Ok(Corewise { queue: queue.build(&pools)?, _pools: Pools(pools) })
    }

    /// Returns the queue.
    pub fn queue(&self) -> &Workqueue {
        &self.queue
    }
}

impl Spawn for Workqueue {
    const HAS_HINT: bool = true;

    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.execute(closure).expect("the pools are open until the last handle is gone");
    }

    fn spawn_blocking<F: FnOnce() + Send + 'static>(&self, closure: F) {
        Spawn::spawn(self, move || blocking("the hint", closure));
    }

    fn signal(&self, done: Unparker) -> impl Fn() {
        let item = Work::new(move || done.unpark());
        move || {
            let queued = self.queue(&item);
            assert_eq!(queued, Ok(Queued::Now), "the item has run, and the pools are open");
        }
    }

    fn flush(&self) {
        Workqueue::flush(self);
    }
}

impl Reuse for Workqueue {
    type Item = Work;

    fn reusable(&self, tiny: Tiny) -> Work {
        Work::new(move || tiny.run())
    }

    fn requeue(&self, item: &Work) -> bool {
        self.queue(item) == Ok(Queued::Now)
    }
}
