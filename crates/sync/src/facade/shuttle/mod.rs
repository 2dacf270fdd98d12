//! Shuttle: random schedules, at a size that loom can't handle. It takes every ordering for
//! `SeqCst`.

#[path = "../model/mod.rs"]
mod model;
#[path = "../usual.rs"]
mod usual;

use std::cell::Cell;
use std::time::Duration;

pub use ::shuttle::hint::spin_loop;
pub(crate) use ::shuttle::sync as lock;
pub(crate) use ::shuttle::sync::atomic;
pub(crate) use ::shuttle::sync::atomic as aside;
pub(crate) use ::shuttle::thread;
pub use ::shuttle::thread_local as per_thread;
pub(crate) use model::{FutexWord, ParkerToken, pair};
pub use model::{
    SpinLock, SpinLockGuard, Swap, computed, prefetch, prefetch_to_write, reads, writes,
};
pub(crate) use usual::{EVERY_SCHEDULE, SEQ_CST_IS_WEAK, Witness, constructor, weakened};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL).
pub(crate) const IN_MODEL: bool = true;

/// A wait with a timeout may reach it at any moment, and then the clock moves on to that point.
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

/// An `UnsafeCell` for shuttle, which has none of its own. Another thread may be scheduled in the
/// middle of each access, and panics if it then accesses the cell against the rules.
#[derive(Debug, Default)]
pub struct UnsafeCell<T> {
    value: std::cell::UnsafeCell<T>,
    /// O: the model's one OS thread: readers inside, or -1 for a writer.
    inside: Cell<isize>,
}

// As with the standard cell, code that shares it argues for its own `Sync`.
impl<T> UnsafeCell<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        UnsafeCell { value: std::cell::UnsafeCell::new(value), inside: Cell::new(0) }
    }

    /// Calls `f` with a pointer for reading; panics if another thread writes.
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        assert!(self.inside.get() >= 0, "read while another thread writes");
        self.inside.set(self.inside.get() + 1);
        thread::sleep(Duration::ZERO); // a scheduling point, and no more
        let result = f(self.value.get());
        self.inside.set(self.inside.get() - 1);
        result
    }

    /// Calls `f` with a pointer for writing; panics if another thread reads or writes.
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        assert!(self.inside.get() == 0, "written while another thread reads or writes");
        self.inside.set(-1);
        thread::sleep(Duration::ZERO); // a scheduling point, and no more
        let result = f(self.value.get());
        self.inside.set(0);
        result
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// A clock that stands still, except for a wait whose time runs out: that moves the clock on to its
/// end.
pub(crate) mod clock {
    use std::cell::Cell;
    use std::time::Instant;

    // One clock for each OS thread, each of which is a whole model.
    std::thread_local! {
        static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
        static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Returns the nanoseconds since the model's clock was first read, plus one.
    pub(crate) fn precise() -> u64 {
        let now = now();
        let began = BEGAN.get().unwrap_or(now);
        BEGAN.set(Some(began));
        u64::try_from(now.duration_since(began).as_nanos()).unwrap_or(u64::MAX - 1) + 1
    }

    pub(crate) fn coarse() -> u64 {
        precise()
    }

    pub(crate) fn with_suspends() -> u64 {
        precise()
    }

    /// Returns the present model time.
    pub(crate) fn now() -> Instant {
        let now = NOW.get().unwrap_or_else(Instant::now);
        NOW.set(Some(now));
        now
    }

    /// Begins a schedule: its clock starts with the same time as every other's. (Otherwise code
    /// that rounds a time might behave differently when the schedule is replayed.)
    pub(crate) fn begin() {
        NOW.set(None);
        BEGAN.set(None);
    }

    /// Moves the clock on to `then`.
    pub(crate) fn move_on(then: Instant) {
        NOW.set(Some(now().max(then)));
    }
}

/// A system in which a schedule sees only chance: threads on any CPU.
pub(crate) mod system {
    use std::cell::Cell;
    use std::io;
    use std::time::Duration;

    pub(crate) use super::model::system::*;
    use super::testing::choose;
    use crate::facade::sys::Reading;

    /// Returns a random CPU: that of the one thread under all of them would change from replay to
    /// replay. Some of the numbers are no CPU of a small machine.
    #[allow(clippy::unnecessary_wraps, reason = "as the system's")]
    pub(crate) fn current_cpu() -> Option<u32> {
        u32::try_from(choose(6)).ok()
    }

    /// CPU time of a thread. Shuttle's threads are all one thread of the system, so their run times
    /// and sleeps are left to chance.
    #[derive(Debug)]
    pub(crate) struct CpuTime {
        ran: Cell<Duration>,
    }

    impl CpuTime {
        #[allow(clippy::unnecessary_wraps, reason = "as the system's")]
        pub(crate) fn of(_tid: u32) -> io::Result<CpuTime> {
            Ok(CpuTime { ran: Cell::new(Duration::ZERO) })
        }

        #[allow(clippy::unnecessary_wraps, reason = "as the system's")]
        pub(crate) fn read(&self) -> Option<Reading> {
            self.ran.set(self.ran.get() + Duration::from_millis(10 * choose(2)));
            Some(Reading { ran: self.ran.get(), asleep: choose(2) == 0 })
        }
    }
}

/// Tools for scenarios in shuttle.
pub(crate) mod testing {
    pub use super::model::must_fail;

    /// Chooses a number below `below`, which must not be 0. The choice is part of the schedule, so
    /// that the same seed chooses the same again. Only inside a shuttle execution.
    pub fn choose(below: u64) -> u64 {
        use shuttle::rand::RngCore as _;
        shuttle::rand::thread_rng().next_u64() % below
    }

    /// Random schedules of a scenario, in shuttle. A failing one prints what replays it:
    /// CONTRIBUTING.md has the commands.
    pub mod schedules {
        use shuttle::scheduler::{
            PctScheduler, RandomScheduler, ReplayScheduler, Scheduler,
            UncontrolledNondeterminismCheckScheduler,
        };
        use shuttle::{Config, FailurePersistence, Runner};
        use std::env::{var, var_os};

        /// Number of schedules that a test runs.
        #[derive(Clone, Copy, Debug)]
        pub struct Schedules {
            /// Default number.
            pub short: usize,
            /// Number with `COREWISE_LONG`.
            pub long: usize,
        }

        impl Schedules {
            fn now(self) -> usize {
                if var_os("SHUTTLE_RANDOM_SEED").is_some() {
                    1
                } else if var_os("COREWISE_LONG").is_some() {
                    self.long
                } else {
                    self.short
                }
            }
        }

        fn run(
            scheduler: impl Scheduler + 'static,
            persist: FailurePersistence,
            scenario: impl Fn() + Send + Sync + 'static,
        ) {
            let mut config = Config::new();
            config.stack_size = 0x4_0000;
            config.failure_persistence = persist;
            config.silence_warnings = true;
            Runner::new(scheduler, config).run(move || {
                crate::facade::backend::clock::begin();
                scenario();
            });
        }

        /// Runs random schedules: any thread may continue at each step. A schedule that fails
        /// prints its seed.
        pub fn random(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
            run(RandomScheduler::new(schedules.now()), FailurePersistence::None, scenario);
        }

        /// Runs schedules with three preemptions, at random places. A failure prints the schedule
        /// itself, and `COREWISE_SHUTTLE_SCHEDULE` replays it.
        pub fn few_preemptions(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
            match var("COREWISE_SHUTTLE_SCHEDULE") {
                Ok(schedule) => {
                    let replay = ReplayScheduler::new_from_encoded(&schedule);
                    run(replay, FailurePersistence::None, scenario);
                }
                Err(_) => {
                    run(PctScheduler::new(3, schedules.now()), FailurePersistence::Print, scenario);
                }
            }
        }

        /// Runs each schedule twice: the second time it has to be the same.
        pub fn replayed(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
            let random = RandomScheduler::new(schedules.now());
            let twice = UncontrolledNondeterminismCheckScheduler::new(random);
            run(twice, FailurePersistence::Print, scenario);
        }
    }
}
