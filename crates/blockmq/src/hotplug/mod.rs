//! CPUs that leave and come: a hardware queue without a CPU gives its requests to another one. `README.md` beside
//! this file has the protocol.

mod activity;
#[cfg(not(loom))]
pub(crate) mod policy;

pub use activity::Activity;

#[cfg(not(loom))]
mod follow;
