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
//! | `faults` | mappings of a frontend's memory, and the signal of a page that is gone |
//! | `memory` | the guest's memory |
//! | `inflight` | the record of requests in flight, which outlives the server |
//! | `shared` | the state of a disk that its threads share: memory, counters, log |
//! | `port` | the way of requests to the device, beside its other clients |
//! | `ring` | one ring: its chains, its requests, its thread |
//! | `session` | one frontend: its messages, its rings |
//! | [`Disk`] | a device on a socket |
//! | [`Server`] | the thread that accepts frontends |
//!
//! # The handler of `SIGBUS`
//!
//! A frontend can truncate memory that it shares, and an access would then end the process. So the
//! first frontend that shares memory makes the crate install a handler of `SIGBUS`, which stays. It
//! handles accesses of this crate alone, and passes every other fault on to the handler before it.
//! A handler of your own has to be there first, or pass on what it doesn't know.
//!
//! The crates of rust-vmm map and reach the guest's memory. The only unsafe code here is that of
//! this handler, and the line that submits a request to an `io_uring`.

#![deny(unsafe_code)]

mod config;
mod disk;
mod error;
#[allow(unsafe_code, reason = "the handler of a signal")]
mod faults;
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
pub use options::{FrontendEvent, Options};
pub use server::Server;

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
