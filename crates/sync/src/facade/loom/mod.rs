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

/// Stands beside a field that is atomic only so that a broken obligation is no data race, and is
/// told of each access: loom reports two that nothing orders.
pub(crate) struct Witness(
    /// P: as the field beside it.
    UnsafeCell<()>,
);

// SAFETY: there is nothing in it, and loom looks after the accesses.
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

/// Fences that aren't there: for models that have to fail without them.
pub(crate) mod weakened {
    use crate::facade::fence::{AsymmetricPolicy, FencePolicy, heavy, light};

    /// No fence at all: only for models that have to fail.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct NoFence;

    impl FencePolicy for NoFence {
        fn full() {}
        fn implied() {}
    }

    /// Without the frequent side's fence: only for models that have to fail.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct NoLight;

    impl AsymmetricPolicy for NoLight {
        fn light() {}

        fn heavy() {
            heavy();
        }
    }

    /// Without the rare side's fence: only for models that have to fail.
    #[derive(Debug, Clone, Copy, Default)]
    pub struct NoHeavy;

    impl AsymmetricPolicy for NoHeavy {
        fn light() {
            light();
        }

        fn heavy() {}
    }
}

/// A system of which a model sees nothing, no CPU either.
pub(crate) mod system {
    pub(crate) use super::model::system::*;
    use crate::facade::sys::Reading;
    use std::io;

    /// Each run of a model has to be the same.
    pub(crate) fn current_cpu() -> Option<u32> {
        None
    }

    /// The figures of one thread: there are none.
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

/// For models in loom.
pub(crate) mod testing {
    use super::atomic::ASKED;
    pub use super::lot::ParkingLot;
    pub use super::model::must_fail;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Runs `model` in every interleaving with at most so many preemptions. A store and a load that
    /// pass each other need one on each side; the full space of three threads is mostly too large.
    pub fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(model);
    }

    /// As [`bounded`], and in every order of the accesses to atomics: loom leaves some out by
    /// itself, where a word is only read by one thread, and read and then written by another. It
    /// multiplies schedules.
    pub fn every_order(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
        /// Also where the model fails.
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
    /// that of a cell that is touched by two. For what ends in a deadlock there is [`must_fail`].
    ///
    /// # Panics
    /// Where the model passes, or fails for another reason.
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
