//! Bring-up: every device is probed as soon as what it needs is bound.

mod report;
mod run;
mod state;

pub use report::{BringUp, BringUpOptions, DeviceReport};
pub(crate) use run::ProbeRun;
pub use state::ProbeOutcome;
pub(crate) use state::{Plan, ProbeState};
