//! A vhost-user-blk server: block devices as disks of virtual machines.

#![forbid(unsafe_code)]

mod config;
mod disk;
mod error;
mod inflight;
mod memory;
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
