//! The data of a queue: requests inside it, its core, its hardware queues, and the driver.

pub(crate) mod affinity;
pub(crate) mod backlog;
pub(crate) mod core;
pub(crate) mod driver;
pub(crate) mod hand;
pub(crate) mod hctx;
pub(crate) mod lanes;
pub(crate) mod late;
pub(crate) mod merge;
pub(crate) mod pending;
