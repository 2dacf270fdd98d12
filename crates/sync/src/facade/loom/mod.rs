//! Loom: every interleaving, and every value that a weak ordering allows.

pub(crate) mod atomic;
#[path = "../model/mod.rs"]
mod model;
pub(crate) mod system;
pub(crate) mod testing;
pub(crate) mod weakened;
mod witness;

pub use ::loom::cell::UnsafeCell;
pub use ::loom::hint::spin_loop;
pub(crate) use ::loom::sync as lock;
pub use ::loom::thread_local as per_thread;
pub(crate) use model::{FutexWord, ParkerToken, pair};
pub use model::{
    SpinLock, SpinLockGuard, Swap, computed, prefetch, prefetch_to_write, reads, writes,
};
pub(crate) use std::sync::atomic as aside;
pub(crate) use witness::Witness;

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL).
pub(crate) const IN_MODEL: bool = true;
/// See [`hint::EVERY_SCHEDULE`](crate::hint::EVERY_SCHEDULE).
pub(crate) const EVERY_SCHEDULE: bool = true;
/// Loom takes `SeqCst` accesses for weaker ones than they are.
pub(crate) const SEQ_CST_IS_WEAK: bool = true;

pub(crate) mod thread {
    //! Loom's threads.

    use std::time::Duration;

    pub use ::loom::thread::{Builder, JoinHandle, Thread, ThreadId, current, spawn, yield_now};

    /// There is no time: lets the others run.
    pub fn sleep(_time: Duration) {
        yield_now();
    }
}

/// Loom's constructors aren't `const`.
macro_rules! constructor {
    ($(#[$attribute:meta])* $visible:vis fn $($rest:tt)*) => {
        $(#[$attribute])* $visible fn $($rest)*
    };
}
pub(crate) use constructor;

/// The clock stands still.
pub(crate) mod clock {
    use std::sync::OnceLock;
    use std::time::Instant;

    // The same for each run of a model. Nobody's behaviour depends on what it is.
    static BEGAN: OnceLock<Instant> = OnceLock::new();

    pub(crate) fn now() -> Instant {
        *BEGAN.get_or_init(Instant::now)
    }

    pub(crate) fn precise() -> u64 {
        1
    }

    pub(crate) fn coarse() -> u64 {
        1
    }

    pub(crate) fn with_suspends() -> u64 {
        1
    }
}

/// A wait with a limit never reaches it.
pub(crate) mod deadline {
    use std::time::{Duration, Instant};

    pub(crate) fn of(_timeout: Duration) -> Option<Instant> {
        None
    }

    pub(crate) fn is_over(_end: Instant) -> bool {
        true
    }

    pub(crate) fn passes(_end: Instant) {}
}
