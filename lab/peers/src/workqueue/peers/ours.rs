//! Corewise in modes that the workloads' own runtimes don't have.
//!
//! `corewise-spawn` uses `spawn`, whose handle is dropped at once. `execute` keeps none, so tokio's
//! `spawn` is to be compared with `spawn`. In `corewise-sleep` idle workers sleep at once, as most
//! peers' do. In `corewise-spin` they spin for a millisecond first, as oneTBB's do. `corewise`
//! itself decides from its past waits.

use std::time::Duration;

use corewise_bench::names::Place;
use corewise_bench::workqueue::runtime::Spawn;
use corewise_bench::workqueue::variants::Corewise;
use corewise_bench::{BenchError, Job};
use corewise_topology::Machine;
use corewise_workqueue::{Idle, Workqueue};

/// The idle workers of `corewise-spin`.
pub(crate) const SPINS: Idle = Idle::Busy(Duration::from_millis(1));

/// Creates a queue of the default scope, with this policy of idle workers.
pub(crate) fn idling(job: &Job, machine: &Machine, idle: Idle) -> Result<Corewise, BenchError> {
    Corewise::new(job, machine, Place::default(), idle)
}

/// The queue, by `spawn` instead of `execute`.
#[derive(Clone)]
pub(crate) struct Spawning(pub(crate) Workqueue);

impl Spawn for Spawning {
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        drop(self.0.spawn(closure));
    }

    fn flush(&self) {
        self.0.flush();
    }
}
