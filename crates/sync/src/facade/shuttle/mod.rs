//! Shuttle: random schedules, at a size that loom can't do. Takes every ordering for `SeqCst`.

mod cell;
pub(crate) mod clock;
mod cpu_time;
#[path = "../model/mod.rs"]
mod model;
pub(crate) mod system;
pub(crate) mod testing;
#[path = "../usual.rs"]
mod usual;

pub use ::shuttle::hint::spin_loop;
pub(crate) use ::shuttle::sync as lock;
pub(crate) use ::shuttle::sync::atomic;
pub(crate) use ::shuttle::sync::atomic as aside;
pub(crate) use ::shuttle::thread;
pub use ::shuttle::thread_local as per_thread;
pub use cell::UnsafeCell;
pub(crate) use model::{FutexWord, ParkerToken, pair};
pub use model::{
    SpinLock, SpinLockGuard, Swap, computed, prefetch, prefetch_to_write, reads, writes,
};
pub(crate) use usual::{EVERY_SCHEDULE, SEQ_CST_IS_WEAK, Witness, constructor, weakened};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL).
pub(crate) const IN_MODEL: bool = true;

/// A wait with a limit may reach it at any moment, and then the clock moves on to that point.
pub(crate) mod deadline {
    use std::time::{Duration, Instant};

    use super::clock;
    use super::testing::choose;

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
