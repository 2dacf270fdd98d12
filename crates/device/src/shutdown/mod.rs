//! Shutdown: every device after its children and consumers, and never slower than one by one.
//! Read `README.md` beside this file first.

mod counted;
mod ends;
mod looped;
mod plan;
pub(crate) mod policy;
mod remaining;
mod report;
mod run;
mod state;

pub(crate) use plan::{Kind, ShutdownPlan};
pub use remaining::{Remaining, RemainingState};
pub use report::{ShutdownMode, ShutdownOptions, ShutdownReport};
pub(crate) use run::ShutdownRun;
pub(crate) use state::ShutdownState;
