//! The standard library, and the system below it: what product code runs on. The system is Linux (`linux/`), or one of
//! which nothing is asked that the standard library doesn't know (`portable/`).

mod cell;
mod prefetch;
#[cfg_attr(all(target_os = "linux", not(portable)), path = "linux/mod.rs")]
#[cfg_attr(not(all(target_os = "linux", not(portable))), path = "portable/mod.rs")]
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
    pub(crate) use super::system::clock::{coarse, precise, with_suspends};

    use std::time::Instant;

    #[inline]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }
}

/// What is tested here needs no more than the standard library.
pub(crate) mod testing {}
