//! Probing: who calls the drivers, on which thread, and what a bring-up says afterwards.

mod leave;
mod report;
mod run;

pub use report::{BringUp, BringUpOptions, DeviceReport, ProbeOutcome};
pub(crate) use run::{Inside, Registry, State};
