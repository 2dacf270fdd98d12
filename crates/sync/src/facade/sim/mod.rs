//! A machine of many cores in virtual time (`corewise-sim`): each access, sleep and wake-up is
//! charged with the time that it takes on a real one.

pub(crate) mod atomic;
pub(crate) mod lock;
pub(crate) mod system;
#[path = "../usual.rs"]
mod usual;
#[path = "../word/mod.rs"]
mod word;

use corewise_sim::{Access, touch};

pub(crate) use atomic as aside;
pub use corewise_sim::sim_thread_local as per_thread;
pub use corewise_sim::spin_loop;
pub(crate) use corewise_sim::thread;
pub(crate) use usual::{EVERY_SCHEDULE, SEQ_CST_IS_WEAK, Witness, constructor, weakened};
pub(crate) use word::{FutexWord, ParkerToken, pair};
pub use word::{SpinLock, SpinLockGuard, Swap};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL): the threads run like those of a machine.
pub(crate) const IN_MODEL: bool = false;

/// Lets virtual time pass. See [`hint::computed`](crate::hint::computed).
pub fn computed(time: std::time::Duration) {
    corewise_sim::burn(time.as_nanos() as f64);
}

/// The virtual clock.
pub(crate) mod clock {
    use std::sync::OnceLock;
    use std::time::{Duration, Instant};

    /// Moments are virtual times after one real moment, whose value nothing depends on.
    fn began() -> Instant {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        *BEGAN.get_or_init(Instant::now)
    }

    #[inline]
    pub(crate) fn now() -> Instant {
        began() + Duration::from_nanos(corewise_sim::now())
    }

    /// Returns the virtual time, never 0, like the system's.
    #[inline]
    pub(crate) fn precise() -> u64 {
        corewise_sim::now() + 1_000_000_000
    }

    #[inline]
    pub(crate) fn coarse() -> u64 {
        corewise_sim::coarse_now() + 1_000_000_000
    }

    /// Returns the same time, as the machine is never suspended.
    #[inline]
    pub(crate) fn with_suspends() -> u64 {
        precise()
    }
}

/// Tools for tests of this backend: none beside the standard library.
pub(crate) mod testing {}

/// Maximum bytes of a cell that an access is charged for: large values are seldom accessed as a
/// whole.
const MOST: usize = 64;

/// An `UnsafeCell` whose accesses are charged for.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T: ?Sized>(
    /// P: as the holder of the cell says.
    std::cell::UnsafeCell<T>,
);

impl<T> UnsafeCell<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer for reading.
    #[track_caller]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        self.charge(Access::Load);
        f(self.0.get())
    }

    /// Calls `f` with a pointer for writing.
    #[track_caller]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.charge(Access::Store);
        f(self.0.get())
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    #[track_caller]
    fn charge(&self, kind: Access) {
        if size_of::<T>() > 0 {
            touch(self.0.get().addr(), size_of::<T>().min(MOST), kind);
        }
    }
}

/// Charges a read. See [`hint::reads`](crate::hint::reads).
#[track_caller]
pub fn reads<T: ?Sized>(shared: &T) {
    touch(std::ptr::from_ref(shared).addr(), size_of_val(shared), Access::Load);
}

/// Charges a write. See [`hint::writes`](crate::hint::writes).
#[track_caller]
pub fn writes<T: ?Sized>(shared: &T) {
    touch(std::ptr::from_ref(shared).addr(), size_of_val(shared), Access::Store);
}

/// Prefetches two lines. See [`hint::prefetch`](crate::hint::prefetch).
pub fn prefetch<T>(shared: *const T) {
    corewise_sim::prefetch(shared.addr(), Access::Load);
    corewise_sim::prefetch(shared.addr() + 64, Access::Load);
}

/// Prefetches a line for writing. See [`hint::prefetch_to_write`](crate::hint::prefetch_to_write).
pub fn prefetch_to_write<T>(shared: *const T) {
    corewise_sim::prefetch(shared.addr(), Access::Store);
}
