//! Shutdown: every device after its children and consumers, and never slower than one by one.
//! Read `README.md` beside this file first.

mod report;
#[cfg(not(loom))]
mod run;
mod state;

pub use report::{ShutdownMode, ShutdownOptions, ShutdownReport};
#[cfg(not(loom))]
pub(crate) use run::ShutdownRun;
#[cfg(not(loom))]
pub(crate) use state::{Kind, ShutdownPlan, ShutdownState};
pub use state::{Remaining, RemainingState};
