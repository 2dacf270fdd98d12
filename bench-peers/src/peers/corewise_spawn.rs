//! Corewise as it is used where somebody may want the result: `spawn`, whose handle is dropped at
//! once. Beside `execute`, which keeps none, it is what tokio's `spawn` is to be compared with.

use std::sync::Arc;

use corewise_bench::BenchError;
use corewise_bench::workqueue::runtime::{Runtime, Signal, Spawn};
use corewise_sync::Unparker;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

/// A queue of the default scope on pools of its own, which live as long as the process.
#[derive(Clone)]
pub(crate) struct CorewiseSpawn {
    queue: Workqueue,
    _pools: Arc<WorkerPools>,
}

impl CorewiseSpawn {
    pub(crate) fn new(machine: &Machine) -> Result<CorewiseSpawn, BenchError> {
        let pools = WorkerPools::new(machine);
        let queue = Workqueue::builder("bench/spawn").build(&pools)?;
        Ok(CorewiseSpawn { queue, _pools: Arc::new(pools) })
    }
}

impl Runtime for CorewiseSpawn {
    fn flush(&self) {
        self.queue.flush();
    }
}

impl Signal for CorewiseSpawn {
    type Item = Unparker;

    fn item(&self, done: Unparker) -> Unparker {
        done
    }

    fn queue(&self, item: &Unparker) {
        let done = item.clone();
        drop(self.queue.spawn(move || done.unpark()));
    }
}

impl Spawn for CorewiseSpawn {
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        drop(self.queue.spawn(closure));
    }
}
