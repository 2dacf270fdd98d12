//! Workqueues whose worker pools follow the machine's caches: Linux's concurrency-managed
//! workqueues, sharded below the last-level cache, in user space.
//!
//! Work is queued on the pod of the CPU that queues it, and a worker of that pod runs it. What a
//! pod is, the queue's [`AffinityScope`](corewise_topology::AffinityScope) says: one CPU, the
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
//! # At rest
//!
//! Workers park on a futex without a timeout: an idle machine stays idle. Only a worker that its
//! pod doesn't need wakes once, after [`DEFAULT_IDLE_TIMEOUT`], to end its thread.
//!
//! # What is promised
//!
//! * After each queueing that returned true, the item runs at least once, unless a shutdown at the
//!   same time cancels it; never on two workers at once.
//! * Items that are queued from one CPU, on one queue and one pod, start in the order in which they
//!   were queued; with more than one worker they may overtake each other after that. (A thread that
//!   moves to another CPU in between has queued from two, and what names a CPU or a node lies with what
//!   is queued from there.) An ordered queue orders what comes from all CPUs.
//! * A panic in an item is caught: the worker, the pool and the queue go on.
//!
//! The protocols and their proofs: `src/pool/README.md`, `src/work_state.md`, `src/links.md`,
//! `src/colours.rs`, `src/limiter/README.md`, `src/timekeeper/README.md`, `src/future_state.rs`.
#![doc = include_str!("guide.md")]

mod around;
mod attributes;
mod below;
mod beside;
mod block;
mod builder;
mod carried;
mod carry;
mod claim;
mod colours;
mod control;
mod cover;
mod current;
mod delayed;
mod dump;
mod error;
mod flushers;
mod follow;
mod future;
mod future_state;
mod groups;
mod idle;
mod inherit;
mod inside;
mod item;
mod limiter;
mod link;
mod links;
#[cfg(any(test, loom))]
#[doc(hidden)]
pub mod model;
mod on_end;
mod once;
mod part;
mod policy;
mod pool;
mod pools;
mod queue;
mod rescuer;
mod scoped;
mod seat;
mod spawn;
mod stack;
mod stall;
mod stats;
mod stuck;
mod submit;
mod table;
mod take_back;
mod tally;
mod task;
mod threads;
mod ticket;
mod timekeeper;
mod waiting;
mod waits;
mod work;
mod work_state;

pub use attributes::{Attributes, QueueKind};
pub use block::block_in_place;
pub use builder::QueueBuilder;
pub use dump::{Dump, LinkDump, PoolDump, QueueDump, RunningDump, ScopeDump, SlotDump, SlotPlace};
pub use error::{BuildError, JoinError, PanicPayload};
pub use idle::Idle;
pub use on_end::EndNotice;
pub use pools::{
    DEFAULT_IDLE_TIMEOUT, DEFAULT_MAX_THREADS, DEFAULT_MAX_WORKERS, PoolsBuilder, StillRunning,
    Unfinished, WorkerPools,
};
pub use queue::Workqueue;
pub use scoped::{Scope, ScopedJoinHandle};
pub use spawn::WorkerThread;
pub use stall::{Doing, ItemReport, StallReport};
pub use stats::{PoolReport, QueueStats};
pub use task::JoinHandle;
pub use timekeeper::{DEFAULT_CPU_INTENSIVE_AFTER, DEFAULT_STALL_AFTER};
pub use work::Work;
