//! One import path for all that a backend may replace: atomics, cells, locks, threads, the clock
//! and the system.
//!
//! Four backends: `real` (the standard library and the system), the model checkers `loom` and
//! `shuttle`, and `sim`, a machine of many cores in virtual time; chosen by `--cfg loom`,
//! `--cfg shuttle` and `--cfg sim`. To add one: a folder here, a line at `mod backend` below, and
//! its name among `check-cfg` in the workspace's `Cargo.toml`. The crates above are compiled
//! unchanged for each of them, so each exports:
//!
//! * `atomic`: `AtomicBool`, `AtomicPtr`, `AtomicU8` to `AtomicU64`, `AtomicUsize`, `fence`;
//! * `aside`: the same, for what decides nothing; where that would multiply schedules, std's;
//! * `UnsafeCell` with `new`, `with`, `with_mut`, `into_inner`;
//! * `lock`: `Mutex`, `RwLock`, their guards and `Condvar` as in `std::sync`, poison and all;
//! * `thread`: `Builder`, `JoinHandle`, `Thread`, `ThreadId`, `current`, `spawn`, `yield_now`,
//!   `sleep`; but in loom also `scope` with `Scope` and `ScopedJoinHandle`;
//! * the macros `per_thread!`, and `constructor!` (a `const fn`, where its constructors are);
//! * `spin_loop`, `computed`, `prefetch`, `prefetch_to_write`, `reads`, `writes`, and the constants
//!   `IN_MODEL`, `EVERY_SCHEDULE` (explained below) and `SEQ_CST_IS_WEAK`;
//! * `Witness`, which is told of accesses to what is atomic without need; it counts where orders
//!   are checked;
//! * `clock`: `now`, `precise`, `coarse`, `with_suspends`;
//! * `system`: see [`crate::sys`], which documents each function;
//! * how threads wait and order themselves: `FutexWord`, `ParkerToken`, `SpinLock`,
//!   `SpinLockGuard`, `Swap`, and `pair`, the asymmetric fences. The folder `word` has them over
//!   `system::futex` and `system::barrier`, for a backend whose threads can sleep on a word;
//!   `model` over its own `lock`, for one that can't. A backend takes one of the two with a `mod`
//!   line;
//! * `weakened`: fences that aren't there, for models that have to fail; empty but in loom;
//! * `testing`: what models are written with; empty but in checkers.
//!
//! `real` has two systems to choose from: Linux, and for all others, or with `--cfg portable`, one
//! of which nothing is asked that the standard library doesn't know.
//!
//! All but loom take what is the same for them from `usual.rs`.
//!
//! A backend stands below all other crates of Corewise, topology included: its machine, if it has
//! one, is told to it as plain numbers.

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
/// the backend's. Shuttle takes every ordering for `SeqCst`: what depends on a weaker one is for
/// loom to check.
pub mod atomic {
    pub use crate::facade::backend::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
    };
    pub use std::sync::atomic::{Ordering, compiler_fence};

    /// The same, for words that decide nothing: counters, marks for a look from outside,
    /// experience, and words that the accesses to others order. Where every schedule is looked at
    /// they are no part of it: they would multiply the schedules, and show nothing.
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

    /// Asks for the two cache lines from an address on, which are needed soon. The address may be
    /// any.
    pub use crate::facade::backend::prefetch;

    /// Asks for the cache line of an address, which is soon written: it needn't be asked for twice,
    /// to read it and then to have it alone. The address may be any.
    pub use crate::facade::backend::prefetch_to_write;

    /// Tells the simulated machine that plain data is read here which another CPU may have written.
    /// Nothing elsewhere. Cells and atomics say so by themselves, and new memory counts as written
    /// by its allocator.
    pub use crate::facade::backend::reads;

    /// As [`reads`], for a write.
    pub use crate::facade::backend::writes;

    /// Says that the caller has computed for about so long and touched nothing that is shared.
    /// Nothing but on a simulated machine, whose clock knows of accesses alone.
    pub use crate::facade::backend::computed;

    /// Whether a model checker schedules the threads. There a thread that looks again and again, or
    /// gives up after some time, only costs schedules and shows nothing; and a panic is the model's
    /// verdict, which nobody may catch.
    pub const IN_MODEL: bool = crate::facade::backend::IN_MODEL;

    /// Whether a model checker looks at every schedule, not at some. There each part has a model of
    /// its own, and a model of the whole leaves such parts out: they would multiply each other's
    /// schedules.
    pub const EVERY_SCHEDULE: bool = crate::facade::backend::EVERY_SCHEDULE;
}
