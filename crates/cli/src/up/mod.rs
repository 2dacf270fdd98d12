//! A server: it brings devices up in parallel, serves them, and shuts them down in the order of
//! their dependencies.
//!
//! Sockets are bound, devices come up, clients are let in. The way back is the reverse, wherever it
//! begins.

mod address_space;
mod calls;
pub(crate) mod check;
pub(crate) mod cleanup;
mod control;
mod descriptors;
mod drivers;
pub(crate) mod error;
mod events;
pub(crate) mod handle;
mod known;
pub(crate) mod limits;
mod listen;
mod listener_thread;
mod live;
mod metrics;
mod new_parts;
pub(crate) mod observer;
mod plan;
pub(crate) mod reach;
mod report;
pub(crate) mod room;
pub(crate) mod server;
mod service;
mod settings;
pub(crate) mod shown;
pub(crate) mod source;
mod spare_thread;
mod status;
mod tls;
