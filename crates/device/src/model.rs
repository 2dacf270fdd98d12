//! Protocols of the crate, for their models: no part of the interface, and hidden from its
//! documentation. Each protocol has a folder, with a `README.md` that argues it.

pub use crate::counters::{Counters, Release, Settled};
pub use crate::deferred::{Attempt, Deferred, NoRecheck, Recheck, RecheckPolicy};
pub use crate::handoff::Handoff;
pub use crate::takeover::{Walk, WalkNote};
