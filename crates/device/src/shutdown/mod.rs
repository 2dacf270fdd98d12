//! Shutdown: every device after its children and consumers, and never slower than one by one.
//! Read `README.md` beside this file first.

mod batch;
mod counted;
mod drawn;
mod ends;
mod hang;
mod looped;
mod options;
mod plan;
pub(crate) mod policy;
mod ready;
mod remaining;
mod report;
mod run;
mod state;

pub use options::{HangPolicy, ShutdownOptions};
pub use plan::ShutdownMode;
pub(crate) use plan::{Kind, Outline, ShutdownPlan, Timeouts};
pub use remaining::{Behind, Remaining, RemainingState};
pub use report::{Overdue, ShutdownReport};
pub(crate) use run::ShutdownRun;
pub(crate) use state::ShutdownState;
