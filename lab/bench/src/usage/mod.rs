//! CPU time, switches and threads of the process, from the system or the simulator.

use std::time::Duration;

#[cfg_attr(sim, path = "simulated.rs")]
#[cfg_attr(not(sim), path = "system.rs")]
mod imp;

pub use imp::run_delay;
pub(crate) use imp::{thread_cpu, threads};

/// Resources that the process has used so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) voluntary_switches: u64,
    pub(crate) peak_rss: u64,
}
