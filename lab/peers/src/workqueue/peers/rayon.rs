//! rayon's thread pool.
//!
//! Its best mode is `spawn`, which keeps no handle. From within a task, `spawn` is a push to the
//! worker's own deque. An idle worker spins for a while before it sleeps. The pool has no hint for
//! a closure that blocks.

use std::sync::Arc;

use corewise_bench::workqueue::runtime::Spawn;
use corewise_bench::{BenchError, Job};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::workqueue::peers::Pin;

/// The pool.
#[derive(Clone)]
pub(crate) struct Rayon(Arc<ThreadPool>);

impl Rayon {
    pub(crate) fn new(job: &Job) -> Result<Rayon, BenchError> {
        let pin = Pin::of(job);
        let builder = ThreadPoolBuilder::new().num_threads(job.workers);
        let pool = builder.start_handler(move |_| pin.pin()).build();
        let pool = pool.map_err(|error| BenchError::Thread(std::io::Error::other(error)))?;
        Ok(Rayon(Arc::new(pool)))
    }
}

impl Spawn for Rayon {
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.0.spawn(closure);
    }

    fn spawn_inside<F: FnOnce() + Send + 'static>(&self, closure: F) {
        rayon::spawn(closure);
    }
}
