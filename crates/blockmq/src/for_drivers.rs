//! Helpers for a driver with threads of its own, beside [`Driver`](crate::Driver).
//!
//! Requests lie in an [`Inbox`](corewise_sync::inbox::Inbox) as [`Queued`], which allocates
//! nothing. A thread that completes several in a row does so in a [`Burst`](corewise_sync::Burst).
//! A request that would wake a worker can wait for the end of the submitter's plug, as a
//! [`PutOffWork`]. [`LateOne`] names a late request to another thread, and [`EndOfWorkers`] says
//! whether there are workers.

pub use crate::admission::end::EndOfWorkers;
pub use crate::queue::plug::{PutOffWork, put_off, works};
pub use crate::state::driver::Queued;
pub use crate::state::late::LateOne;
