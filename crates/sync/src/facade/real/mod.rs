//! The standard library and Linux: what product code runs on.

mod cell;
mod cpu_time;
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
))]
mod rseq;
pub(crate) mod system;
#[path = "../word/mod.rs"]
mod word;

pub use cell::UnsafeCell;
pub use std::hint::spin_loop;
pub(crate) use std::sync as lock;
pub(crate) use std::sync::atomic;
pub(crate) use std::sync::atomic as aside;
pub(crate) use std::thread;
pub use std::thread_local;
pub(crate) use word::{FutexWord, ParkerToken, pair};
pub use word::{SpinLock, SpinLockGuard};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL).
pub(crate) const IN_MODEL: bool = false;
/// See [`hint::EVERY_SCHEDULE`](crate::hint::EVERY_SCHEDULE).
pub(crate) const EVERY_SCHEDULE: bool = false;
/// Whether `SeqCst` accesses are taken for weaker ones than they are.
pub(crate) const SEQ_CST_IS_WEAK: bool = false;

/// See [`hint::computed`](crate::hint::computed).
#[inline(always)]
pub fn computed(_time: std::time::Duration) {}

/// Declares thread-locals: `static NAME: Type = constant;`, any number.
#[macro_export]
macro_rules! per_thread {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $init:expr;)*) => {
        $crate::thread::thread_local! { $($(#[$attribute])* static $name: $type = const { $init };)* }
    };
}

/// A `const fn`.
macro_rules! constructor {
    ($(#[$attribute:meta])* $visible:vis fn $($rest:tt)*) => {
        $(#[$attribute])* $visible const fn $($rest)*
    };
}
pub(crate) use constructor;

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
        now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
    }
}

/// No fence is missing.
pub(crate) mod weakened {}
