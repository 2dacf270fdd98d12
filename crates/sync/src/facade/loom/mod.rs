//! Loom: every interleaving, and every value that a weak ordering allows.

pub(crate) mod atomic;
#[path = "../real/portable/lot.rs"]
mod lot;
#[path = "../model/mod.rs"]
mod model;

pub use ::loom::cell::UnsafeCell;
pub use ::loom::hint::spin_loop;
pub(crate) use ::loom::sync as lock;
pub use ::loom::thread_local as per_thread;
pub(crate) use model::{FutexWord, ParkerToken, pair};
pub use model::{
    SpinLock, SpinLockGuard, Swap, computed, prefetch, prefetch_to_write, reads, writes,
};
pub(crate) use std::sync::atomic as aside;

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

    /// Lets other threads run: there is no time.
    pub fn sleep(_time: Duration) {
        yield_now();
    }
}

/// A function that isn't `const`, as loom's constructors.
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

    // The same for each run of a model. No behaviour depends on the value.
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

/// A wait with a timeout never reaches it.
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

/// A marker beside a field that is atomic only so that a broken obligation is no data race. It
/// records each access, so that loom reports two that nothing orders.
pub(crate) struct Witness(
    /// P: as the field beside it.
    UnsafeCell<()>,
);

// SAFETY: it is empty, and loom checks the accesses.
unsafe impl Sync for Witness {}

impl Witness {
    pub(crate) fn new() -> Self {
        Witness(UnsafeCell::new(()))
    }

    pub(crate) fn reads(&self) {
        self.0.with(|_| ());
    }

    pub(crate) fn writes(&self) {
        self.0.with_mut(|_| ());
    }
}

/// Fences that do nothing, for models that have to fail without them.
pub(crate) mod weakened {
    use crate::facade::fence::{AsymmetricPolicy, FencePolicy, heavy, light};

    /// Full fence that does nothing: only for models that have to fail.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct NoFence;

    impl FencePolicy for NoFence {
        fn full() {}
        fn implied() {}
    }

    /// Fences without the frequent side's: only for models that have to fail.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct NoLight;

    impl AsymmetricPolicy for NoLight {
        fn light() {}

        fn heavy() {
            heavy();
        }
    }

    /// Fences without the rare side's: only for models that have to fail.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct NoHeavy;

    impl AsymmetricPolicy for NoHeavy {
        fn light() {
            light();
        }

        fn heavy() {}
    }
}

/// A system that is invisible to a model, including its CPUs.
pub(crate) mod system {
    pub(crate) use super::model::system::*;
    use crate::facade::sys::Reading;
    use std::io;

    /// Returns no CPU, as each run of a model has to be the same.
    pub(crate) fn current_cpu() -> Option<u32> {
        None
    }

    /// CPU time of a thread, which a model doesn't have.
    #[derive(Debug)]
    pub(crate) struct CpuTime;

    impl CpuTime {
        pub(crate) fn of(_tid: u32) -> io::Result<CpuTime> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn read(&self) -> Option<Reading> {
            None
        }
    }
}

/// Tools for models in loom.
pub(crate) mod testing {
    use super::atomic::ASKED;
    pub use super::lot::ParkingLot;
    pub use super::model::must_fail;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Runs `model` in every interleaving with at most this many preemptions. A store and a load
    /// that pass each other need one on each side. The full space of three threads is mostly too
    /// large.
    pub fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    /// Runs `model` like [`bounded`], and in every order of the accesses to atomics. Loom leaves
    /// some out by itself if a word is only read by one thread, and read and then written by
    /// another. This multiplies schedules.
    pub fn every_order(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        /// A guard that resets the flag even if the model fails.
        struct ResetAtEnd;
        impl Drop for ResetAtEnd {
            fn drop(&mut self) {
                ASKED.set(false);
            }
        }
        ASKED.set(true);
        let _asked = ResetAtEnd;
        bounded(preemptions, model);
    }

    /// Runs `model`, which has to fail with a message that contains `what`: its own assertion's, or
    /// that of a cell that two threads access. For a deadlock there is [`must_fail`].
    ///
    /// # Panics
    /// If the model passes, or fails for another reason.
    pub fn must_panic(what: &str, model: impl FnOnce()) {
        let failed = catch_unwind(AssertUnwindSafe(model));
        let payload = failed.expect_err("the model had to fail, and passed");
        let message = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or_default();
        assert!(message.contains(what), "failed for another reason: {message}");
    }
}
