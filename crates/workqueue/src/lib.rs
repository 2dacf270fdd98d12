//! Workqueues whose worker pools follow the machine's caches: Linux's concurrency-managed
//! workqueues, sharded below the last-level cache, in user space.
//!
//! Work is queued on the pod of the CPU that queues it, and a worker of that pod runs it. A pod
//! is, by the queue's [`AffinityScope`](corewise_topology::AffinityScope): one CPU, the
//! siblings of a core, a last-level cache, a shard of one (the default), a node, or the whole
//! machine. A soft queue's work is taken over by another pod while its own is saturated; a strict
//! queue's never is.
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
//! the pool of the caller's pod. If the queue's limit has no place the item is held back until one
//! is given up; else it goes to the CPU's list of that pool, without a lock, and a worker is woken
//! if a core is free and nobody looks for work already. A worker takes it from there, clears the
//! mark, runs it, and counts it out: the last one of those that a [`flush`](Workqueue::flush) waits
//! for lets that go on. If the item is queued while it runs, it runs once more after, and never
//! beside itself. Until it has started it can be cancelled, put off, or run by the thread that
//! waits for it.
//!
//! In the sources that is the way `PwqTable`, `Pwq`, `Ticket`, `Queued`, `CpuList`, `Worker`,
//! `Running`, `DeferredEnds`; the folders are rooms, and imports go one way.
//!
//! # At rest
//!
//! Workers park on a futex without a timeout: an idle machine stays idle. Only a worker that its
//! pod doesn't need wakes once, after [`DEFAULT_IDLE_TIMEOUT`], to end its thread.
//!
//! # What is promised
//!
//! * After each queueing that returned `Ok`, the item runs at least once, unless it is cancelled,
//!   or a shutdown at the same time cancels it; never on two workers at once.
//! * An ordered queue starts its items in the order in which they were queued, from all CPUs. Items
//!   that are queued from one CPU on a queue that is bound to one start in that order too, and what
//!   waits behind a limit is let through so; but for an item that a waiter takes back and runs
//!   itself. (A thread that moves to another CPU in between has queued from two.)
//! * Else items that are queued from one CPU, on one queue and one pod, are handed out in the order
//!   in which they were queued, up to 32 at a time to a worker while they are short: those of two
//!   workers overtake each other. Where a worker loses its CPU between two of them, another one
//!   takes the rest over: at once if it has nothing else to do, else after 400 items or four
//!   milliseconds for each CPU of the pool, at most. The one item that a worker has in hand it
//!   starts itself.
//! * A panic in an item is caught: the worker, the pool and the queue go on.
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
