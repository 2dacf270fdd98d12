//! Multi-queue block dispatch whose common path takes no sleeping lock.
//!
//! A [`BlockDevice`] takes [`Request`]s and completes each of them exactly once. A [`Queue`] is
//! one: it puts per-CPU software queues and a few hardware queues in front of a [`Driver`]. The
//! [`drivers`] are `null`, `memory`, `file` (io_uring, or plain reads and writes where that is
//! refused), and those that stand on other devices: `stripe`, `mirror`, `partition`, and the injectors
//! `delay` and `error`. A driver of one's own is three functions: see [`Driver`].
//!
//! ```
//! use std::sync::Arc;
//! use corewise_blockmq::drivers::{Memory, Stripe};
//! use corewise_blockmq::{BlockDevice, BlockDeviceExt, Queue};
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
//! # Life of a request
//!
//! [`BlockDevice::submit`] checks it against the device's [`Geometry`], cuts it into parts where it is over the
//! driver's limits, and pushes it to the software queue of the CPU it is called on (unless the thread has a
//! [`Plug`]: then at the end of that). The hardware queue is run, by the submitter if nobody else is doing so:
//! what waits and touches is merged, gets a tag and goes to [`Driver::queue_request`]. When the driver calls
//! [`Started::complete`], the tag is freed and the completion function of each request in it runs.
//!
//! Its bytes lie in the caller's own [`Buffer`]s, as many as there are, and are never copied; a device that stands
//! on others gives them windows onto the same memory ([`Whole`]).
//!
//! # Holding a queue
//!
//! | | new requests | queued ones | those in the driver |
//! |---|---|---|---|
//! | [`Queue::quiesce`] | are queued | wait | aren't waited for |
//! | [`Queue::freeze`] | wait outside | are finished | are finished |
//! | [`Queue::drain`] | wait outside until it is over | are finished | are finished |
//! | [`Queue::stop`] | are queued | wait (one hardware queue) | aren't waited for |
//!
//! All of them nest, but for `stop`. Each has a form that doesn't wait (`quiesce_nowait`, `start_freeze`), and the
//! others are refused in atomic sections; [`Queue::quiesce_all`] quiesces many with one wait.
//!
//! # Changing a queue
//!
//! Requests go on meanwhile: [`Queue::update_hw_queues`] (how many hardware queues, and which CPUs share one),
//! [`Queue::hold_still`] (anything else that needs a queue with nothing in it). A queue follows its machine: a
//! hardware queue that loses its last CPU finishes what its driver has, and hands the rest on.
//!
//! How that works without a lock, and why nothing is left behind, is argued in `src/README.md` and
//! checked with loom in `tests/loom/`.
//!
//! # What isn't promised
//!
//! Requests in flight aren't ordered, and overlapping ones may tear.
//!
//! # Workers
//!
//! A queue and its drivers use the queue [below](corewise_workqueue::Workqueue::below) the workqueue that they are given: so
//! that workqueue may be drained, destroyed, frozen or full, also by items that wait for requests. Drain block queues
//! before you shut their worker pools down. Where there are no workers any more, the thread that submits or completes does what
//! they would have done; what needs a thread that may block (a driver that [may](Driver::may_block), a file on
//! threads, a mirror's record) completes with [`IoErrorKind::Gone`]; what a [`Delay`](drivers::Delay) holds goes on at
//! once; and nobody looks for requests that are [late](QueueBuilder::timeout).

mod complete;
mod device;
mod driver;
pub mod drivers;
mod error;
#[doc(hidden)]
pub mod model;
mod queue;
mod read_only;
mod request;

mod bell;
mod cache;
mod depth;
mod end;
mod flush;
mod flusher;
mod gate;
mod geometry;
mod grace;
mod hctx;
mod hotplug;
mod lane_state;
mod leg_states;
mod run_state;
mod runner;

mod ctx;
mod limits;
mod map;
mod merge;
mod pending;
mod plug;
mod policy;
mod regions;
mod sched;
mod split;
mod stats;
mod tags;
mod timeout;
mod usage;
mod wait_queue;

pub use complete::{Completer, CompleterStats, RqAffinity, behind_burst};
pub use device::{BlockDevice, BlockDeviceExt};
pub use driver::{Dispatch, Displaced, Driver, Started};
pub use error::{IoError, IoErrorKind, NotHeld, NowaitError, Refused};
pub use geometry::Geometry;
pub use map::HwQueues;
pub use plug::Plug;
pub use queue::{Queue, QueueBuilder, Released};
pub use read_only::ReadOnlyLatch;
pub use request::{
    AlignedBuf, Buffer, BufferPool, Completed, Extent, ExtentKind, Extents, Flags, Held, Op,
    PartDone, Payload, Request, Segment, Segments, Whole,
};
pub use sched::{Deadline, IoScheduler};
pub use stats::{DiskStats, HctxStats, IoStats, OpStats};
pub use tags::TagSet;
pub use timeout::{TimedOut, TimerReturn};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
