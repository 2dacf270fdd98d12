//! A vhost-user-blk server: block devices as disks of virtual machines.
//!
//! A [`Server`] listens on the sockets of its [`Disk`]s. A frontend (QEMU, Cloud Hypervisor)
//! connects to one, and shares its guest's memory. From then on the guest puts its requests into
//! rings in that memory, and the server's threads take them from there. The README has an example,
//! and says what is served and whom the server trusts.
//!
//! In reading order:
//!
//! | module | its job |
//! |---|---|
//! | `config` | the disk as the guest sees it: feature bits, the configuration space. Pure |
//! | `waker` | wake-ups of a thread that sleeps in `epoll` |
//! | `memory` | the guest's memory |
//! | `inflight` | the record of requests in flight, which outlives the server |
//! | `shared` | the state of a disk that its threads share: memory, counters, log |
//! | `port` | the way of requests to the device, beside its other clients |
//! | `ring` | one ring: its chains, its requests, its thread |
//! | `session` | one frontend: its messages, its rings |
//! | [`Disk`] | a device on a socket |
//! | [`Server`] | the thread that accepts frontends |
//!
//! The crate has no unsafe code: the crates of rust-vmm map and reach the guest's memory.

#![forbid(unsafe_code)]

mod config;
mod disk;
mod error;
mod inflight;
mod memory;
#[doc(hidden)]
pub mod model;
mod options;
mod port;
mod ring;
mod server;
mod session;
mod shared;
mod waker;

pub use disk::{Disk, DiskStatus, StopReport};
pub use error::Error;
pub use options::Options;
pub use server::Server;

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
