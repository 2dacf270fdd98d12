//! Corewise in modes that the workloads' own runtimes don't have.
//!
//! `corewise-spawn`: `spawn`, whose handle is dropped at once. Beside `execute`, which keeps none, it
//! is what tokio's `spawn` is to be compared with. `corewise-sleep` and `corewise-spin`: idle workers
//! that sleep at once, as most peers' do, and that spin for a millisecond first, as oneTBB's do;
//! `corewise` itself decides from what it has seen.

use std::sync::Arc;
use std::time::Duration;

use corewise_bench::BenchError;
use corewise_bench::workqueue::job::Job;
use corewise_bench::workqueue::runtime::{Runtime, Signal, Spawn};
use corewise_sync::Unparker;
use corewise_topology::{AffinityScope, CpuSet, Machine};
use corewise_workqueue::{Idle, Work, WorkerPools, Workqueue};

/// A queue on pools of its own, which live as long as the process.
#[derive(Clone)]
pub(crate) struct Ours {
    queue: Workqueue,
    _pools: Arc<WorkerPools>,
}

impl Ours {
    /// Of the default scope; or, where the job has one pinned worker, of that CPU alone.
    pub(crate) fn new(job: &Job, machine: &Machine, idle: Idle) -> Result<Ours, BenchError> {
        let pools = WorkerPools::builder(machine).idle(idle).build();
        let mut queue = Workqueue::builder("bench-peers");
        if let Some(cpu) = job.worker_cpu {
            let alone = CpuSet::from_iter([cpu]);
            queue = queue.scope(AffinityScope::Cpu).cpus(alone).strict(true);
        }
        Ok(Ours { queue: queue.build(&pools)?, _pools: Arc::new(pools) })
    }

    pub(crate) const SPINS: Idle = Idle::Busy(Duration::from_millis(1));
}

impl Runtime for Ours {
    fn flush(&self) {
        self.queue.flush();
    }
}

impl Signal for Ours {
    type Item = Work;

    fn item(&self, done: Unparker) -> Work {
        Work::new(move || done.unpark())
    }

    fn queue(&self, item: &Work) {
        let accepted = self.queue.queue(item);
        assert!(accepted, "the item has run, so it isn't pending, and the pools are open");
    }
}

impl Spawn for Ours {
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        drop(self.queue.spawn(closure));
    }
}
