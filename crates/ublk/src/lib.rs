//! Block devices as disks of this machine, by Linux's ublk.
//!
//! A [`Disk`] is `/dev/ublkbN`: the kernel passes its requests to this process through `io_uring`,
//! and this process passes them to a [`BlockDevice`](corewise_blockmq::BlockDevice). There is no
//! socket and no protocol between them.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//! use corewise_blockmq::Queue;
//! use corewise_drivers::Memory;
//! use corewise_export::SharedDevice;
//! use corewise_ring::RingSet;
//! use corewise_topology::Machine;
//! use corewise_ublk::{DiskOptions, Disks};
//! use corewise_workqueue::{WorkerPools, Workqueue};
//!
//! let machine = Machine::live()?;
//! let pools = WorkerPools::new(&machine);
//! let wq = Workqueue::builder("block").build(&pools)?;
//! let ram = Queue::builder(&machine, Arc::new(Memory::new(64 << 20)?)).name("ram").build(&wq);
//!
//! let disks = Disks::new(&RingSet::new(&machine));
//! let disk = disks.add(&SharedDevice::new(ram.clone()), DiskOptions::default())?;
//! println!("{}", disk.path().display()); // /dev/ublkb0: mkfs, mount, dd
//! disk.remove(Duration::from_secs(10))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A server that ends
//! A disk may [outlive](DiskOptions::outlives) its server. If the server is killed, or
//! [leaves](Disk::leave) the disk, the kernel keeps its requests, and the next server that adds a
//! device with its [mark](DiskOptions::mark) takes it over. The kernel delivers to it also the
//! requests that the former server had and didn't answer. Each of them may have been done in part.
//! Doing it again has the same effect, since nobody sends a second request for the same blocks
//! before the first is answered.
//!
//! # Why the crate `io-uring`
//! `libublk` has threads, a runtime and a life of a device of its own. Ours have many disks each,
//! take results from any thread, and submit requests by turns with other clients of the device. The
//! interface itself is three commands of a ring and a dozen of the control device.
//!
//! In reading order: `abi` (the kernel's numbers), `error`, `control` (commands), `queue` (the
//! states of tags), `rings` (the threads), `left` (disks without a server), `disk`.
#![cfg(target_os = "linux")]

mod abi;
mod control;
mod disk;
mod error;
mod left;
mod queue;
mod rings;
#[cfg(test)]
mod tests;

pub use disk::{Abilities, Disk, DiskOptions, DiskStatus, Disks, Removal};
pub use error::Error;
pub use left::{FoundDisk, Mark, discard_left, list};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
