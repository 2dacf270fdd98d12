//! The standard library and Linux: what product code runs on.

mod cell;
mod cpu_time;
mod prefetch;
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
))]
mod rseq;
pub(crate) mod system;
#[path = "../untold.rs"]
mod untold;
#[path = "../usual.rs"]
mod usual;
#[path = "../word/mod.rs"]
mod word;

pub use crate::real_per_thread as per_thread;
pub use cell::UnsafeCell;
pub use prefetch::{prefetch, prefetch_to_write};
pub use std::hint::spin_loop;
pub(crate) use std::sync as lock;
pub(crate) use std::sync::atomic;
pub(crate) use std::sync::atomic as aside;
pub(crate) use std::thread;
pub use untold::{computed, reads, writes};
pub(crate) use usual::{EVERY_SCHEDULE, SEQ_CST_IS_WEAK, Witness, constructor, weakened};
pub(crate) use word::{FutexWord, ParkerToken, pair};
pub use word::{SpinLock, SpinLockGuard, Swap};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL).
pub(crate) const IN_MODEL: bool = false;

#[doc(hidden)]
#[macro_export]
macro_rules! real_per_thread {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $init:expr;)*) => {
        ::std::thread_local! { $($(#[$attribute])* static $name: $type = const { $init };)* }
    };
}

/// The clock. See [`crate::time`].
pub(crate) mod clock {
    use rustix::time::{ClockId, clock_gettime};

    use std::time::Instant;

    #[inline]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    #[inline]
    pub(crate) fn precise() -> u64 {
        read(ClockId::Monotonic)
    }

    #[inline]
    pub(crate) fn coarse() -> u64 {
        read(ClockId::MonotonicCoarse)
    }

    #[inline]
    fn read(clock: ClockId) -> u64 {
        let now = clock_gettime(clock);
        // The clock begins when the system does: it is never negative, and the sum lasts for centuries.
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// What is tested here needs no more than the standard library.
pub(crate) mod testing {}
