//! The peers that are Rust, one file each, all behind the workloads' traits.

pub(crate) mod crossbeam;
pub(crate) mod executor;
pub(crate) mod ours;
pub(crate) mod rayon;
pub(crate) mod tokio;

use corewise_bench::job::Job;
use corewise_topology::{CpuId, CpuSet, Machine};

/// The CPU of a runtime's only worker, if the case names one.
#[derive(Clone, Copy)]
pub(crate) struct Pin(Option<CpuId>);

impl Pin {
    pub(crate) fn of(job: &Job) -> Pin {
        Pin(job.worker_cpu)
    }

    /// Pins the calling worker, if the case names its CPU.
    pub(crate) fn pin(self) {
        let Some(cpu) = self.0 else { return };
        let pinned = Machine::live()
            .and_then(|machine| machine.pin_current_thread(&CpuSet::from_iter([cpu])));
        if let Err(error) = pinned {
            // A thread on another CPU must not be measured.
            panic!("a worker can't be pinned to CPU {cpu}: {error}");
        }
    }
}
