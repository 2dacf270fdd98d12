//! The peers that are Rust, one file each, all behind the workloads' traits.

pub(crate) mod crossbeam;
pub(crate) mod executor;
pub(crate) mod ours;
pub(crate) mod rayon;
pub(crate) mod tokio;

use std::sync::Arc;

use corewise_bench::job::Job;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::{CpuId, CpuSet, Machine};

/// Behind the name of a runtime: each of its workers on a CPU of its own, as Corewise pins its first
/// ones. No peer does so by itself, nor do its users; it is tried so that nobody need wonder.
pub(crate) const PINNED: &str = "-pinned";

/// Where a runtime's workers are pinned.
#[derive(Clone)]
pub(crate) struct Pins {
    /// One after the other, round and round; none: nobody is pinned.
    cpus: Arc<[CpuId]>,
    /// A: Relaxed; it only deals numbers out.
    next: Arc<AtomicUsize>,
}

impl Pins {
    pub(crate) fn of(job: &Job, machine: &Machine) -> Pins {
        let cpus: Arc<[CpuId]> = match job.worker_cpu {
            Some(cpu) => [cpu].into(),
            None if job.runtime.ends_with(PINNED) => machine.online().iter().collect(),
            None => [].into(),
        };
        Pins { cpus, next: Arc::new(AtomicUsize::new(0)) }
    }

    /// Pins the calling worker, if it is to be.
    pub(crate) fn pin(&self) {
        if self.cpus.is_empty() {
            return;
        }
        let cpu = self.cpus[self.next.fetch_add(1, Ordering::Relaxed) % self.cpus.len()];
        let pinned = Machine::live()
            .and_then(|machine| machine.pin_current_thread(&CpuSet::from_iter([cpu])));
        if let Err(error) = pinned {
            // A thread that isn't where it is measured must not be measured.
            panic!("a worker can't be pinned to CPU {cpu}: {error}");
        }
    }
}
