//! CPU time, switches and threads of the process so far: asked of the system, or of the simulator.

use std::time::Duration;

#[cfg_attr(sim, path = "simulated.rs")]
#[cfg_attr(not(sim), path = "system.rs")]
mod imp;

pub use imp::RunDelay;
pub(crate) use imp::{thread_cpu, threads};

/// What the process has used so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) voluntary_switches: u64,
    pub(crate) peak_rss: u64,
}
