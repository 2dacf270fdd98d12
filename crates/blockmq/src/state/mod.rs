//! Requests, and the data of a queue: those inside it, its core, its hardware queues, and the
//! driver.

pub(crate) mod backlog;
pub(crate) mod completer;
pub(crate) mod core;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod fill;
pub(crate) mod late;
pub(crate) mod merge;
pub(crate) mod pending;
pub(crate) mod request;
pub(crate) mod segments;
pub(crate) mod whole;
