//! A machine of many cores in virtual time (`corewise-sim`): what runs here is charged for each access, sleep and
//! wake-up by what a real one would pay.

pub(crate) mod atomic;
mod cell;
pub(crate) mod lock;
pub(crate) mod system;
mod touch;
#[path = "../usual.rs"]
mod usual;
#[path = "../word/mod.rs"]
mod word;

pub(crate) use atomic as aside;
pub use cell::UnsafeCell;
pub use corewise_sim::sim_thread_local as per_thread;
pub use corewise_sim::spin_loop;
pub(crate) use corewise_sim::thread;
pub use touch::{prefetch, prefetch_to_write, reads, writes};
pub(crate) use usual::{EVERY_SCHEDULE, SEQ_CST_IS_WEAK, Witness, constructor, weakened};
pub(crate) use word::{FutexWord, ParkerToken, pair};
pub use word::{SpinLock, SpinLockGuard, Swap};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL): its threads run as a machine's do.
pub(crate) const IN_MODEL: bool = false;

/// See [`hint::computed`](crate::hint::computed).
pub fn computed(time: std::time::Duration) {
    corewise_sim::burn(time.as_nanos() as f64);
}

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

    /// Nobody suspends the machine.
    #[inline]
    pub(crate) fn with_suspends() -> u64 {
        precise()
    }
}

/// What is tested here needs no more than the standard library.
pub(crate) mod testing {}
