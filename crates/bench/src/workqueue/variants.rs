//! Corewise's queues behind the workload's trait.

use corewise_sync::Unparker;
use corewise_topology::AffinityScope;
use corewise_workqueue::{Work, WorkerPools, Workqueue};

use crate::error::BenchError;
use crate::workqueue::kernel_test::Queue;

/// A soft, unbound workqueue of one scope.
#[derive(Debug)]
pub struct Corewise {
    queue: Workqueue,
}

impl Corewise {
    /// A queue of this scope on these pools.
    ///
    /// # Errors
    /// The queue couldn't be built.
    pub fn new(pools: &WorkerPools, scope: AffinityScope) -> Result<Corewise, BenchError> {
        let queue = Workqueue::builder(format!("bench/{scope}")).scope(scope).build(pools)?;
        Ok(Corewise { queue })
    }
}

impl Queue for Corewise {
    type Item = Work;

    fn item(&self, done: Unparker) -> Work {
        Work::new(move || done.unpark())
    }

    fn queue(&self, item: &Work) {
        let accepted = self.queue.queue(item);
        assert!(accepted, "the item has run, so it isn't pending, and the pools are open");
    }

    fn flush(&self) {
        self.queue.flush();
    }
}
