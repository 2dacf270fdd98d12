//! Shutdown: every device after its children and consumers, and never slower than one by one.
//! Read `README.md` beside this file first.

mod batch;
mod hang;
mod looped;
mod options;
pub(crate) mod policy;
mod report;
mod run;
mod state;

pub use options::{HangPolicy, ShutdownMode, ShutdownOptions};
pub(crate) use options::{Kind, Outline, ShutdownPlan, Timeouts};
pub use report::{Blocker, OverdueCallback, Remaining, RemainingState, ShutdownReport};
pub(crate) use run::ShutdownRun;
pub(crate) use state::ShutdownState;
