//! The block drivers of Corewise: memory, files, stripes, mirrors, overlays, partitions and
//! injectors.
//!
//! Each is a [`Driver`](corewise_blockmq::Driver), which a [`Queue`](corewise_blockmq::Queue) puts
//! to work. [`Null`] and [`Memory`] finish requests on the spot, [`FileDriver`] asks the kernel
//! (io_uring, or plain reads and writes if that is refused). [`Stripe`], [`Mirror`], [`Overlay`],
//! [`Partition`], [`CheckpointDriver`] and the injectors [`Delay`] and [`Faulty`] stand on other
//! block devices. With the feature `crypt`, `Crypt` encrypts another device in the format of LUKS2.
//!
//! ```
//! use std::sync::Arc;
//! use corewise_blockmq::{BlockDevice, BlockDeviceExt, Queue};
//! use corewise_drivers::{Memory, Stripe};
//! use corewise_topology::Machine;
//! use corewise_workqueue::{WorkerPools, Workqueue};
//!
//! let machine = Machine::live()?;
//! let pools = WorkerPools::new(&machine);
//! let wq = Workqueue::builder("block").build(&pools)?;
//!
//! let mut disks: Vec<Arc<dyn BlockDevice>> = Vec::new();
//! for _ in 0..2 {
//!     disks.push(Queue::builder(&machine, Arc::new(Memory::new(1 << 20)?)).build(&wq));
//! }
//! let stripe = Arc::new(Stripe::new(disks, 64 << 10)?);
//! let volume = Queue::builder(&machine, stripe).name("volume").build(&wq);
//!
//! volume.write_at(4096, vec![7; 512])?;
//! volume.flush()?;
//! assert_eq!(volume.read_at(4096, 512)?, vec![7; 512]);
//! volume.drain();
//! # drop(volume);
//! pools.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Workers
//!
//! If the worker pools were shut down, a request to a file on threads, or one that changes a
//! mirror's record, completes with [`Gone`](corewise_blockmq::IoErrorKind::Gone). Requests that a
//! [`Delay`] holds go on at once. An [`Overlay`] fetches nothing more.

mod below;
mod bit_pages;
mod checkpoint;
#[cfg(feature = "crypt")]
mod crypt;
mod delay;
mod faulty;
mod file;
mod file_guard;
mod memory;
mod mirror;
#[doc(hidden)]
pub mod model;
mod null;
mod overlay;
mod partition;
mod stripe;

pub use below::{StackError, holds_data};
pub use checkpoint::{
    Checkpoint, CheckpointDriver, CheckpointEvent, CheckpointImage, CheckpointOptions,
    CheckpointStatus,
};
#[cfg(feature = "crypt")]
pub use crypt::{Crypt, CryptHeader, CryptOptions, Secret};
pub use delay::{Delay, Delays};
pub use faulty::{Fault, Faulty};
pub use file::{
    Alignment, FileDriver, FileEvent, FileOptions, FileRings, IoPath, OnLoss, OpenError,
    OpenErrorKind, PathInUse, lies_in_memory,
};
pub use file_guard::{FileFault, FileGuard};
pub use memory::Memory;
pub use mirror::{
    Degraded, FindLeg, LegState, Mirror, MirrorCheck, MirrorChecked, MirrorEvent, MirrorLeg,
    MirrorObserver, MirrorOptions, MirrorPlace, MirrorStatus,
};
pub use null::{Null, NullOptions};
pub use overlay::{FetchPolicy, Overlay, OverlayEvent, OverlayOptions, OverlayStatus};
pub use partition::{Partition, PartitionEntry, PartitionTable};
pub use stripe::Stripe;

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
