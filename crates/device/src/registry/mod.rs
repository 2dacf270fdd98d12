//! The live registry: every device that exists, and the threads that probe and unbind them. Read
//! `README.md` beside this file first.
//!
//! The state of all devices and its steps ([`devices`], [`bring_up`], [`leave`] and so on) have
//! neither threads nor clock; [`run`] and what stands beside it drive them.

mod bring_up;
mod devices;
mod devices_state;
mod info;
mod inside;
mod leave;
mod links;
mod matching;
mod prober;
#[cfg(test)]
mod random_tests;
mod report;
mod run;
#[cfg(test)]
mod stepped;
mod walk;

pub(crate) use bring_up::BringUpPlan;
pub(crate) use devices::{Devices, Effects, Instance};
pub(crate) use inside::{ProbesAround, ProbesInside};
pub(crate) use links::{LinkOutcome, UnlinkOutcome};
pub(crate) use matching::{Candidate, Drivers, RegisteredDriver};
pub use report::{BringUp, BringUpOptions, DeviceReport};
pub(crate) use run::{Registry, RegistryState};
pub(crate) use walk::{TakenCallback, Walk};
