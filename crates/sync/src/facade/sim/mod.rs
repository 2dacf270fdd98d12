//! A machine of many cores in virtual time (`corewise-sim`): what runs here is charged for each access, sleep and
//! wake-up by what a real one would pay.

pub(crate) mod atomic;
mod cell;
pub(crate) mod lock;
pub(crate) mod system;
#[path = "../word/mod.rs"]
mod word;

pub(crate) use atomic as aside;
pub use cell::UnsafeCell;
pub use corewise_sim::sim_thread_local as thread_local;
pub use corewise_sim::spin_loop;
pub(crate) use corewise_sim::thread;
pub(crate) use word::{FutexWord, ParkerToken, pair};
pub use word::{SpinLock, SpinLockGuard};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL): its threads run as a machine's do.
pub(crate) const IN_MODEL: bool = false;
/// See [`hint::EVERY_SCHEDULE`](crate::hint::EVERY_SCHEDULE).
pub(crate) const EVERY_SCHEDULE: bool = false;
/// Whether `SeqCst` accesses are taken for weaker ones than they are.
pub(crate) const SEQ_CST_IS_WEAK: bool = false;

/// See [`hint::computed`](crate::hint::computed).
pub fn computed(time: std::time::Duration) {
    corewise_sim::burn(time.as_nanos() as f64);
}

/// Declares thread-locals: `static NAME: Type = constant;`, any number. The simulator's threads are
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

/// The virtual clock.
pub(crate) mod clock {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    /// Moments are virtual times after one real moment, which nobody looks at by itself.
    fn began() -> Instant {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        *BEGAN.get_or_init(Instant::now)
    }

    #[inline]
    pub(crate) fn now() -> Instant {
        began() + Duration::from_nanos(corewise_sim::now())
    }

    /// Never 0, as the system's.
    #[inline]
    pub(crate) fn precise() -> u64 {
        corewise_sim::now() + 1_000_000_000
    }

    #[inline]
    pub(crate) fn coarse() -> u64 {
        corewise_sim::coarse_now() + 1_000_000_000
    }
}

/// No fence is missing.
pub(crate) mod weakened {}
