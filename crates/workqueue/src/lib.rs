//! Workqueues whose worker pools follow the machine's caches: Linux's concurrency-managed
//! workqueues, sharded below the last-level cache, in user space.
//!
//! Work is queued on the pod of the CPU that queues it, and a worker of that pod runs it. The
//! queue's [`AffinityScope`](corewise_topology::AffinityScope) says what a pod is: one CPU, the
//! siblings of a core, a last-level cache, a shard of one (the default), a node, or the whole
//! machine. While a pod is saturated, another pod takes over the work of soft queues, but never
//! that of strict ones.
//!
//! ```
//! use corewise_topology::Machine;
//! use corewise_workqueue::{WorkerPools, Workqueue};
//!
//! let pools = WorkerPools::new(&Machine::live()?);
//! let queue = Workqueue::builder("sums").build(&pools)?;
//! let sums: Vec<_> = (0..4u64).map(|n| queue.spawn(move || (0..=n).sum::<u64>())).collect();
//! let total: u64 = sums.into_iter().map(|sum| sum.join().expect("no panic")).sum();
//! assert_eq!(total, 0 + 1 + 3 + 6);
//! pools.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What happens to an item
//!
//! `queue` marks the item pending and counts it in the *pool_workqueue* that joins the queue with
//! the pool of the caller's pod. If the queue's limit has no place, the item is held back until one
//! is given up. Otherwise it goes to the CPU's list of that pool, without a lock. If a core is free
//! and no worker searches, the queuer wakes one. A worker takes the item from there, clears the
//! mark, runs the item, and counts it out. The last item that a [`flush`](Workqueue::flush) waits
//! for ends the flush. If the item is queued while it runs, it runs once more after, and never
//! beside itself. Until it has started, it can be cancelled, put off, or run by a thread that waits
//! for it.
//!
//! In the sources an item passes `PwqTable`, `Pwq`, `Ticket`, `Queued`, `CpuList`, `Worker`,
//! `Running`, `DeferredEnds`. The folders are rooms, and imports go one way.
//!
//! # At rest
//!
//! Workers park on a futex without a timeout: an idle machine stays idle. Only a worker that its
//! pod doesn't need wakes once, after [`DEFAULT_IDLE_TIMEOUT`], to end its thread.
//!
//! # What is promised
//!
//! * After each queueing that returned `Ok`, the item runs at least once, unless it is cancelled,
//!   or a shutdown at the same time cancels it. It never runs on two workers at once.
//! * An ordered queue starts its items in the order in which they were queued, from all CPUs. A
//!   queue that is bound to a CPU starts the items from one CPU in that order too, and so do
//!   limits. The exception is an item that a waiter takes back and runs itself. (A thread that
//!   moves to another CPU in between has queued from two.)
//! * In all other cases workers take items that were queued from one CPU, on one queue and one pod,
//!   in the order of queueing. A worker takes up to 32 short items at a time, so items of two
//!   workers overtake each other. If a worker loses its CPU between two of them, another one takes
//!   the rest over. It does so at once if it is idle, else after at most 400 items or four
//!   milliseconds for each CPU of the pool. A worker starts the one item that it has in hand
//!   itself.
//! * A panic in an item is caught: the worker, the pool and the queue continue.
//!
//! The protocols and their proofs: `src/pool/README.md`, `src/task/state.md`, `src/pwq/README.md`,
//! `src/pwq/flush.rs`, `src/pwq/limit.md`, `src/timekeeper/README.md`, `src/queue/future.rs`.
#![doc = include_str!("guide.md")]

mod attributes;
mod error;
mod fork;
mod handle;
#[cfg(any(test, loom, shuttle))]
#[doc(hidden)]
#[path = "../tests/model/mod.rs"]
pub mod model;
mod pool;
mod pools;
mod pwq;
mod queue;
mod report;
mod task;
mod timekeeper;
mod wait;

pub use attributes::{At, Attributes, QueueKind};
pub use corewise_sync::context::blocking;
pub use corewise_sync::panics::PanicPayload;
pub use error::{BuildError, JoinError, QueueError, Queued, Refused};
pub use handle::join::{AbortOnDrop, JoinHandle};
pub use handle::work::Work;
pub use pool::policy::Idle;
pub use pool::spawn::WorkerThread;
pub use pools::builder::{
    DEFAULT_IDLE_TIMEOUT, DEFAULT_MAX_THREADS, DEFAULT_MAX_WORKERS, PoolsBuilder,
};
pub use pools::{StillRunning, Unfinished, WorkerPools};
pub use queue::builder::QueueBuilder;
pub use queue::control::EndNotice;
pub use queue::delayed::Ticker;
pub use queue::divide::Divisible;
pub use queue::scope::{PlacedScope, Scope, ScopedJoinHandle};
pub use queue::{PlacedQueue, Workqueue};
pub use report::{
    Dump, LinkDump, PoolDump, PoolReport, QueueDump, QueueStats, RunningDump, ScopeDump, SlotDump,
    SlotPlace,
};
pub use timekeeper::stall::{Activity, ItemReport, StallReport};
pub use timekeeper::{DEFAULT_CPU_INTENSIVE_AFTER, DEFAULT_STALL_AFTER};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
