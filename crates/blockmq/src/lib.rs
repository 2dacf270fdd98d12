//! Multi-queue block dispatch whose common path takes no sleeping lock.
//!
//! A [`BlockDevice`] takes [`Request`]s and completes each of them exactly once. A [`Queue`] is
//! one: it puts per-CPU software queues and a few hardware queues in front of a [`Driver`]. The
//! crate `corewise-drivers` has drivers for memory, files, stripes, mirrors and more. A custom
//! driver is two functions, and [`Driver`] has an example; [`for_drivers`] has tools for a driver
//! with threads of its own.
//!
//! # Life of a request
//!
//! [`BlockDevice::submit`] checks it against the device's [`Geometry`], and splits it into parts if
//! it is over the driver's limits. It then pushes it to the software queue of the CPU it is called
//! on; a thread with a [`Plug`] does that at the plug's end. The submitter runs the hardware queue,
//! unless another thread does: waiting requests that touch are merged, and each gets a tag and goes
//! to [`Driver::queue_request`]. When the driver calls [`Started::complete`], the tag is freed and
//! the completion function of each request in it runs.
//!
//! Its bytes lie in the caller's own [`Buffer`]s, as many as there are, and are never copied; a
//! device over others gives them windows onto the same memory ([`Whole`]).
//!
//! # Holding a queue
//!
//! | | new requests | queued ones | those in the driver |
//! |---|---|---|---|
//! | [`Queue::quiesce`] | are queued | wait | aren't waited for |
//! | [`Queue::freeze`] | wait outside | are finished | are finished |
//! | [`Queue::drain`] | wait outside until it is over | are finished | are finished |
//!
//! Quiesce and freeze return guards, which let go when they are dropped; they nest. Each has a form
//! that doesn't wait (`quiesce_nowait`, `start_freeze`), and the others are refused in atomic
//! sections; [`Queue::quiesce_all`] quiesces many with one wait.
//!
//! # Changing a queue
//!
//! A queue [grows](Queue::grow) while requests are in flight. It follows its machine: a hardware
//! queue that loses its last CPU finishes its driver's requests, and passes the rest on.
//!
//! `src/README.md` explains how that works without a lock, and why no request is left behind. The
//! models in `tests/loom/` check it.
//!
//! # What isn't promised
//!
//! Requests in flight aren't ordered, and overlapping ones may tear.
//!
//! # Workers
//!
//! A queue and its drivers use the queue [below](corewise_workqueue::Workqueue::below) the
//! workqueue that they are given. So that workqueue may be drained, destroyed, frozen or full, also
//! by items that wait for requests. Drain block queues before you shut their worker pools down.
//! Once there are no workers any more, the thread that submits or completes does their work. A
//! request to a driver that [may block](Info::may_block) then completes with [`IoErrorKind::Gone`],
//! and [late](QueueBuilder::timeout) requests are no longer noticed.

mod admission;
mod complete;
pub mod for_drivers;
mod hctx;
#[doc(hidden)]
pub mod model;
mod nest;
mod percpu;
mod queue;
mod request;
mod sched;
mod shape;
mod state;
mod stats;
mod tags;
mod timeout;

pub use percpu::map::HwQueues;
pub use queue::plug::Plug;
pub use queue::{FreezeGuard, NowaitError, Queue, QueueBuilder, QuiesceGuard, RefusedRequest};
pub use request::error::{IoError, IoErrorKind};
pub use request::geometry::Geometry;
pub use request::read_only::ReadOnlyLatch;
pub use request::{
    AlignedBuf, Buffer, BufferMemory, BufferPool, Extent, ExtentKind, Extents, Flags, Op, Payload,
};
pub use sched::{Deadline, IoScheduler};
pub use state::completer::{Completer, CompleterStats, RqAffinity};
pub use state::device::BlockDeviceExt;
pub use state::driver::{
    BlockDevice, DEFAULT_DEPTH, Dispatch, Displaced, Driver, Info, Remap, Started,
};
pub use state::fill::RequestMut;
pub use state::late::{TimedOut, TimerReturn};
pub use state::request::{Completed, Request};
pub use state::segments::{Segment, Segments};
pub use state::whole::{HeldRequest, PartDone, Whole};
pub use stats::{DiskStats, HctxStats, IoStats, OpStats};
pub use tags::TagSet;

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
