//! What the process has used so far: asked of the system, or of the simulator.

#[cfg_attr(sim, path = "simulated.rs")]
#[cfg_attr(not(sim), path = "system.rs")]
mod imp;

pub(crate) use imp::{Usage, thread_cpu};
