//! Completion: from the driver's "done" to the request's end, perhaps on another CPU.
//!
//! `README.md` beside this file has the steps.

mod burst;
mod finish;
mod lanes;
pub(crate) mod nest;
mod policy;
pub(crate) mod poll;

pub use burst::{Burst, behind_burst};
pub use lanes::{Completer, CompleterStats};
pub use policy::RqAffinity;

pub(crate) use finish::Verdict;
pub(crate) use lanes::Placement;
