//! One import path for everything that a backend may replace: atomics, cells, locks, threads, the
//! clock and the system.
//!
//! There are four backends: `real` (the standard library and the system), the model checkers `loom`
//! and `shuttle`, and `sim`, a machine of many cores in virtual time. `--cfg loom`, `--cfg shuttle`
//! and `--cfg sim` choose one. To add one: a folder here, a line at `mod backend` below, and its
//! name among `check-cfg` in the workspace's `Cargo.toml`. The crates above are compiled unchanged
//! for each of them, so each exports:
//!
//! * `atomic`: `AtomicBool`, `AtomicPtr`, `AtomicU8` to `AtomicU64`, `AtomicUsize`, `fence`;
//! * `aside`: the same, for words that decide nothing; std's types, if the backend's would multiply
//!   schedules;
//! * `UnsafeCell` with `new`, `with`, `with_mut`, `into_inner`;
//! * `lock`: `Mutex`, `RwLock`, their guards and `Condvar` as in `std::sync`, including poison;
//! * `thread`: `Builder`, `JoinHandle`, `Thread`, `ThreadId`, `current`, `spawn`, `yield_now`,
//!   `sleep`; in all but loom also `scope` with `Scope` and `ScopedJoinHandle`;
//! * the macros `per_thread!`, and `constructor!` (a `const fn`, if its constructors are);
//! * `spin_loop`, `computed`, `prefetch`, `prefetch_to_write`, `reads`, `writes`, and the constants
//!   `IN_MODEL`, `EVERY_SCHEDULE` (explained below) and `SEQ_CST_IS_WEAK`;
//! * `Witness`, which records accesses to fields that are atomic without need; it matters if orders
//!   are checked;
//! * `clock`: `now`, `precise`, `coarse`, `with_suspends`;
//! * `system`: see [`crate::sys`], which documents each function;
//! * waiting and ordering of threads: `FutexWord`, `ParkerToken`, `SpinLock`, `SpinLockGuard`,
//!   `Swap`, and `pair`, the asymmetric fences. The folder `word` has them over `system::futex` and
//!   `system::barrier`, for a backend whose threads can sleep on a word; `model` has them over its
//!   own `lock`, for one that can't. A backend takes one of the two with a `mod` line;
//! * `weakened`: fences that do nothing, for models that have to fail; empty except in loom;
//! * `testing`: tools for writing models; empty except in checkers.
//!
//! `real` has two systems to choose from: Linux, and, for all others or with `--cfg portable`, one
//! that uses only the standard library.
//!
//! All but loom take their common definitions from `usual.rs`.
//!
//! A backend stands below all other crates of Corewise, including topology: it gets its machine, if
//! it has one, as plain numbers.

#[cfg(all(any(loom, shuttle, sim), not(feature = "model")))]
compile_error!(
    "`--cfg loom`, `--cfg shuttle` and `--cfg sim` need the feature `model` of corewise-sync: \
    take it as a dev-dependency with that feature, as the crates of Corewise do"
);

#[cfg_attr(loom, path = "loom/mod.rs")]
#[cfg_attr(shuttle, path = "shuttle/mod.rs")]
#[cfg_attr(sim, path = "sim/mod.rs")]
#[cfg_attr(not(any(loom, shuttle, sim)), path = "real/mod.rs")]
pub(crate) mod backend;

pub mod fence;
pub(crate) mod lock;
pub mod spin;
pub mod sys;

/// Atomic types, [`Ordering`](std::sync::atomic::Ordering) and fences: the standard library's, or
/// the backend's. Shuttle takes every ordering for `SeqCst`: loom checks code that depends on a
/// weaker one.
pub mod atomic {
    pub use crate::facade::backend::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
    };
    pub use std::sync::atomic::{Ordering, compiler_fence};

    /// Atomic types for words that decide nothing: counters, marks for observers, experience, and
    /// words that the accesses to others order. If every schedule is explored, they are no part of
    /// it: they would multiply the schedules, and show nothing.
    pub mod aside {
        pub use crate::facade::backend::aside::{
            AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence,
        };
    }
}

/// An `UnsafeCell` with loom's closure-scoped access, so that loom sees each access begin and end.
pub mod cell {
    pub use crate::facade::backend::UnsafeCell;
}

/// Threads: the standard library's, or the backend's.
pub mod thread {
    pub use crate::facade::backend::thread::{
        Builder, JoinHandle, Thread, ThreadId, current, sleep, spawn, yield_now,
    };
    #[cfg(not(loom))]
    pub use crate::facade::backend::thread::{Scope, ScopedJoinHandle, scope};
    pub use std::thread::Result;
}

/// Spin hints: the standard library's, or the backend's (a model checker's yield to the model).
pub mod hint {
    pub use crate::facade::backend::spin_loop;

    /// Prefetches the two cache lines from an address on, which are needed soon. The address may be
    /// any.
    pub use crate::facade::backend::prefetch;

    /// Prefetches the cache line of an address, which is soon written, so that it is fetched once:
    /// exclusively, not first to read. The address may be any.
    pub use crate::facade::backend::prefetch_to_write;

    /// Tells the simulated machine that plain data is read here which another CPU may have written.
    /// It does nothing elsewhere. Cells and atomics do this by themselves, and new memory counts as
    /// written by its allocator.
    pub use crate::facade::backend::reads;

    /// Tells the simulated machine about a write, like [`reads`].
    pub use crate::facade::backend::writes;

    /// Tells the simulated machine that the caller has computed for about this time and accessed
    /// nothing shared. The machine's clock counts only accesses. It does nothing elsewhere.
    pub use crate::facade::backend::computed;

    /// True if a model checker schedules the threads. There a thread that polls, or gives up after
    /// some time, only costs schedules and shows nothing; and a panic is the model's verdict, which
    /// no code may catch.
    pub const IN_MODEL: bool = crate::facade::backend::IN_MODEL;

    /// True if a model checker explores every schedule, not a sample. There each part has a model
    /// of its own, and a model of the whole leaves such parts out: they would multiply each other's
    /// schedules.
    pub const EVERY_SCHEDULE: bool = crate::facade::backend::EVERY_SCHEDULE;
}
