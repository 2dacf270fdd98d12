//! The peers that are Rust, one file each, all behind the workloads' traits.

pub(crate) mod corewise_spawn;
pub(crate) mod crossbeam;
pub(crate) mod executor;
pub(crate) mod rayon;
pub(crate) mod tokio;

use corewise_topology::{CpuSet, Machine};

/// Pins the calling worker, where it is to be pinned.
pub(crate) fn pin_to(cpu: Option<u32>) {
    let Some(cpu) = cpu else { return };
    let pinned =
        Machine::live().and_then(|machine| machine.pin_current_thread(&CpuSet::from_iter([cpu])));
    if let Err(error) = pinned {
        // What isn't where it is measured must not be measured.
        panic!("a worker can't be pinned to CPU {cpu}: {error}");
    }
}
