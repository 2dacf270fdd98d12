//! The part that all front ends of a block device have in common, whatever their protocol.
//!
//! A device may have clients by several protocols at once: NBD over a socket, a disk of this
//! machine, a disk of a virtual machine. They share one [`SharedDevice`], and each is a [`Client`]
//! of it:
//!
//! ```
//! use std::sync::Arc;
//! use corewise_blockmq::{Queue, Request};
//! use corewise_drivers::Memory;
//! use corewise_export::{Client, Feed, Peer, SharedDevice};
//! use corewise_sync::Parker;
//! use corewise_topology::Machine;
//! use corewise_workqueue::{WorkerPools, Workqueue};
//!
//! let machine = Machine::live()?;
//! let pools = WorkerPools::new(&machine);
//! let wq = Workqueue::builder("block").build(&pools)?;
//! let disk = Queue::builder(&machine, Arc::new(Memory::new(1 << 20)?)).name("ram").build(&wq);
//!
//! let shared = SharedDevice::new(disk.clone());
//! let parker = Parker::new();
//! let client = Client::new(&shared, Peer::Kernel.into(), parker.waker());
//! let mut feed = Feed::new(Arc::new(client), Vec::new());
//! let (tell, told) = std::sync::mpsc::channel();
//! feed.push(Request::read(0, 4096), move |done| _ = tell.send(done.into_data()));
//! while feed.submit().is_waiting() {
//!     parker.park();
//! }
//! assert_eq!(told.recv()??.len(), 4096);
//! # drop(feed);
//! disk.drain();
//! # drop(disk);
//! pools.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In reading order:
//!
//! | module | its job |
//! |---|---|
//! | `access` | the identity of a client, where it may attach, and its requests a second |
//! | [`blocks`] | the blocks that a range covers, whole or in part. Pure |
//! | `losses` | the losses of a device that each client knows of |
//! | [`range_lock`] | changes that cover blocks of the device in part |
//! | [`turn`] | turns, by which the clients of a device share it |
//! | `device` | a device with the state that its clients share |
//! | `traffic` | counters of answered requests |
//! | `client` | one client of it |
//! | `feed` | the requests of a client whose thread never waits |
//! | `memory` | memory that clients of several front ends share |
//! | `socket` | a Unix socket that listens |

mod access;
pub mod blocks;
mod client;
mod device;
mod feed;
mod losses;
mod memory;
pub mod range_lock;
mod socket;
mod traffic;
pub mod turn;

pub use access::{Access, Identity, Limiter, Peer, Rate};
pub use client::{Client, InDevice};
pub use device::{SharedDevice, submit_listed};
pub use feed::{Feed, Next};
pub use memory::MemoryPool;
pub use socket::{BindError, SocketAccess, SocketFile, check_unix, listen_unix};
pub use traffic::{Counts, Traffic};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
