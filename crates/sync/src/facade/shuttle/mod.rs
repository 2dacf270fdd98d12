//! Shuttle: random schedules, at a size that loom can't do. Takes every ordering for `SeqCst`.

mod cell;
pub(crate) mod clock;
mod cpu_time;
#[path = "../model/mod.rs"]
mod model;
pub(crate) mod system;

pub use ::shuttle::hint::spin_loop;
pub(crate) use ::shuttle::sync as lock;
pub(crate) use ::shuttle::sync::atomic;
pub(crate) use ::shuttle::sync::atomic as aside;
pub(crate) use ::shuttle::thread;
pub use ::shuttle::thread_local;
pub use cell::UnsafeCell;
pub(crate) use model::{FutexWord, ParkerToken, pair};
pub use model::{SpinLock, SpinLockGuard};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL).
pub(crate) const IN_MODEL: bool = true;
/// See [`hint::EVERY_SCHEDULE`](crate::hint::EVERY_SCHEDULE).
pub(crate) const EVERY_SCHEDULE: bool = false;
/// Whether `SeqCst` accesses are taken for weaker ones than they are.
pub(crate) const SEQ_CST_IS_WEAK: bool = false;

/// See [`hint::computed`](crate::hint::computed).
#[inline(always)]
pub fn computed(_time: std::time::Duration) {}

/// Declares thread-locals: `static NAME: Type = constant;`, any number. The checker's threads are
/// coroutines on one OS thread, so theirs have to be used.
#[macro_export]
macro_rules! per_thread {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $init:expr;)*) => {
        $crate::thread::thread_local! { $($(#[$attribute])* static $name: $type = $init;)* }
    };
}

/// A `const fn`.
macro_rules! constructor {
    ($(#[$attribute:meta])* $visible:vis fn $($rest:tt)*) => {
        $(#[$attribute])* $visible const fn $($rest)*
    };
}
pub(crate) use constructor;

/// A wait with a limit may reach it at any moment, and then the clock moves on to that point.
pub(crate) mod deadline {
    use std::time::{Duration, Instant};

    use super::clock;
    use crate::model::choose;

    pub(crate) fn of(timeout: Duration) -> Option<Instant> {
        clock::now().checked_add(timeout)
    }

    pub(crate) fn is_over(end: Instant) -> bool {
        end <= clock::now() || choose(4) == 0
    }

    pub(crate) fn passes(end: Instant) {
        clock::move_on(end);
    }
}

/// No fence is missing.
pub(crate) mod weakened {}
