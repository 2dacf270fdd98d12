//! Probing: who calls the drivers, on which thread, and what a bring-up says afterwards.

mod add;
mod inside;
mod leave;
mod prober;
mod report;
mod run;
mod unbinding;

pub(crate) use inside::{Around, Inside};
pub(crate) use leave::Walk;
pub use report::{BringUp, BringUpOptions, DeviceReport, ProbeOutcome};
pub(crate) use run::{Registry, State};
pub(crate) use unbinding::TakenOver;
