//! Multi-queue block dispatch whose common path takes no sleeping lock.

mod ctx;
mod device;
#[cfg(not(loom))]
mod driver;
#[cfg(not(loom))]
pub mod drivers;
mod error;
mod gate;
mod grace;
#[cfg(not(loom))]
mod hctx;
mod map;
#[cfg(not(loom))]
mod policy;
#[cfg(not(loom))]
mod queue;
mod request;
mod run_state;
mod runner;
#[cfg(not(loom))]
mod stats;
mod tags;
mod usage;

pub use device::{BlockDevice, BlockDeviceExt, Geometry};
#[cfg(not(loom))]
pub use driver::{Dispatch, Driver, Started};
pub use error::{IoError, IoErrorKind};
#[cfg(not(loom))]
pub use queue::{Queue, QueueBuilder};
pub use request::{Completed, Flags, Op, Payload, Request};
pub use runner::Ran;
#[cfg(not(loom))]
pub use stats::HctxStats;

/// The protocol types of the queue, each small enough to be model-checked, for that purpose and for
/// whoever builds another queue. `README.md` in this crate's `src` argues them.
pub mod protocol {
    pub use crate::ctx::SoftwareQueues;
    pub use crate::gate::{RunGate, Unquiesced};
    pub use crate::grace::Grace;
    pub use crate::map::{CpuMap, CpuPlace, Place};
    pub use crate::run_state::{Claim, End, RunState};
    pub use crate::runner::{Pass, Ran, Source, run};
    pub use crate::tags::{Freed, Tags};
    pub use crate::usage::{Unfrozen, Usage};
}
