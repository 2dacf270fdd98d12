//! Bring-up: every device is probed as soon as what it needs is bound.

mod report;
#[cfg(not(loom))]
mod run;
mod state;

pub use report::{BringUp, BringUpOptions, DeviceReport};
#[cfg(not(loom))]
pub(crate) use run::ProbeRun;
pub use state::ProbeOutcome;
pub(crate) use state::{Plan, ProbeState};
