//! The floor under every Corewise crate that has threads: a facade of the standard primitives, a
//! few one-word synchronization primitives, and the execution context of a thread.
//!
//! The crate has four parts, and nothing else:
//!
//! * **The facade** ([`atomic`], [`cell`], [`thread`], [`hint`], [`Mutex`], [`RwLock`],
//!   [`Condvar`], [`fence`]). Product code takes its primitives from here, never from
//!   `std::sync::atomic`. So the same code runs under the [loom](https://docs.rs/loom) model
//!   checker when built with `--cfg loom`, and in the random schedules of
//!   [shuttle](https://docs.rs/shuttle) with `--cfg shuttle`. The clock is there too ([`time`]),
//!   and the system ([`sys`]). One folder of `facade/` is one backend.
//! * **Primitives** that several crates need: [`Parker`], [`Completion`], [`Countdown`],
//!   [`Signal`], [`SpinLock`], [`Swap`], [`Throttle`], [`Counter`], [`Proof`], [`inbox`], [`list`],
//!   [`ring`], [`hazard`], [`heap`], [`epoch`].
//! * **The execution context** ([`context`]): atomic sections, [`context::might_block`], blocking
//!   regions and the placement token of the running task.
//! * **User panics and texts** ([`panics`], [`text`]): caught, discarded, and shown within bounds.
//!
//! Legend of the guard letters used on shared fields in all of Corewise:
//!
//! | letter | the field is |
//! |---|---|
//! | `I:` | immutable after construction |
//! | `A:` | atomic, touched by any thread; the ordering is argued where it is used |
//! | `L:` | guarded by the lock that the comment names, or is that lock |
//! | `O:` | touched by its owner thread only |
//! | `P:` | owned by the holder of the state bit that the comment names |

pub mod context;
pub mod epoch;
pub mod hazard;
pub mod heap;
pub mod inbox;
pub mod list;
pub mod panics;
pub mod ring;
pub mod text;
pub mod time;

#[doc(hidden)]
pub mod model;

mod bell;
mod burst;
mod clean;
mod completion;
mod counter;
mod facade;
mod own;
mod parker;
mod proof;
mod signal;
mod throttle;

pub use bell::Bell;
pub use burst::{Burst, behind_burst};
pub use clean::CleanAt;
pub use completion::{Completion, Countdown};
pub use counter::Counter;
pub use crossbeam_utils::CachePadded;
pub use facade::backend::Swap;
/// Declares thread-locals: `static NAME: Type = constant;`, any number. They are the backend's:
/// those of the system would be shared by threads that are coroutines.
pub use facade::backend::per_thread;
pub use facade::lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use facade::spin::{SpinLock, SpinLockGuard};
pub use facade::{atomic, cell, fence, hint, spin, sys, thread};
pub use parker::{Parker, Unparker};
pub use proof::Proof;
pub use signal::Signal;
pub use throttle::{LeftOut, Throttle};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
