//! The peers that are Rust, one file each, all behind the trait of the call workloads.

pub(crate) mod channels;
pub(crate) mod rayon;
pub(crate) mod tokio;

use corewise_bench::calls::roundtrip::called;
use corewise_bench::start::pinned;
use corewise_bench::{BenchError, Job};
use corewise_sync::thread;
use corewise_topology::{CpuId, CpuSet, Machine};

/// Whom a job calls.
pub(crate) struct Targets {
    machine: Machine,
    /// The CPUs of the threads that are called.
    pub(crate) cpus: Vec<CpuId>,
    /// Whether the caller answers too: of a call to many its own CPU's share is its own work.
    pub(crate) own: bool,
}

impl Targets {
    pub(crate) fn of(job: &Job, machine: &Machine) -> Result<Targets, BenchError> {
        let mut cpus: Vec<CpuId> = called(job, machine)?.iter().collect();
        let all = cpus.len();
        if job.case.starts_with("broadcast/") {
            cpus.retain(|&cpu| cpu != job.client());
        }
        let own = cpus.len() < all;
        Ok(Targets { machine: machine.clone(), cpus, own })
    }

    /// What the caller itself has to add.
    #[inline]
    fn own_answer(own: bool, number: u64) -> u64 {
        if own { answer(number) } else { 0 }
    }
}

/// What every target does with a value that it is sent.
#[inline]
pub(crate) fn answer(value: u64) -> u64 {
    value + 1
}

/// A thread that stays on one CPU. Dropping this waits for its end, so what tells it to end goes
/// before.
pub(crate) struct Pinned(Option<thread::JoinHandle<()>>);

impl Pinned {
    /// Starts it, and returns once it is where it is to be.
    ///
    /// # Errors
    /// It couldn't be started or pinned; then `body` isn't run.
    pub(crate) fn start(
        targets: &Targets,
        name: &str,
        cpu: CpuId,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Pinned, BenchError> {
        let cpus = Some(CpuSet::from_iter([cpu]));
        pinned(&targets.machine, &format!("{name}/{cpu}"), cpus, body).map(|one| Pinned(Some(one)))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // One that panicked has said so.
            drop(thread.join());
        }
    }
}
