//! `Mutex`, `RwLock` and `Condvar` without poisoning.
//!
//! A panic in user code never spreads through a lock. Corewise catches panics where user code is
//! called, and never calls user code while it holds one of its own locks.

use std::sync::{TryLockError, TryLockResult};
use std::time::Duration;

use crate::facade::backend::{constructor, lock as imp};

pub use imp::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutual-exclusion lock that sleeps. Taking it in an atomic section is a design error, but isn't
/// reported: short critical sections on slow paths are left to the caller's judgment.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(imp::Mutex<T>);

impl<T> Mutex<T> {
    constructor! {
        /// Creates an unlocked mutex.
        pub fn new(value: T) -> Self {
            Mutex(imp::Mutex::new(value))
        }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        match self.0.into_inner() {
            Ok(value) => value,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock; may sleep.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Takes the lock if it is free; never sleeps.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        tried(self.0.try_lock())
    }

    /// Returns the value without locking: `&mut` proves that no other thread holds the lock.
    pub fn get_mut(&mut self) -> &mut T {
        match self.0.get_mut() {
            Ok(value) => value,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// Returns the guard, poisoned or not, if there is one.
fn tried<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A lock that sleeps, for many readers or one writer.
#[derive(Debug)]
pub struct RwLock<T>(imp::RwLock<T>);

impl<T> RwLock<T> {
    constructor! {
        /// Creates an unlocked lock.
        pub fn new(value: T) -> Self {
            RwLock(imp::RwLock::new(value))
        }
    }

    /// Takes the lock for reading, along with other readers; may sleep. A thread that has a read
    /// lock already must not take another: it might wait for a writer that waits for it.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        match self.0.read() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Takes the lock exclusively; may sleep.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        match self.0.write() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Takes the lock for reading unless a writer has it or waits for it; never sleeps.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        tried(self.0.try_read())
    }

    /// Takes the lock exclusively if it is free; never sleeps.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        tried(self.0.try_write())
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(imp::Condvar);

impl Condvar {
    constructor! {
        /// Creates a condition variable.
        pub fn new() -> Self {
            Condvar(imp::Condvar::new())
        }
    }

    /// Releases the lock, sleeps, and takes the lock again. May wake without a notification:
    /// re-check.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        match self.0.wait(guard) {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Waits like [`Condvar::wait`], for at most `timeout`. The flag is true if the time ran out.
    /// (Under shuttle it never does; see [`Parker::park_timeout`](crate::Parker::park_timeout) for
    /// one that does.)
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        match self.0.wait_timeout(guard, timeout) {
            Ok((guard, result)) => (guard, result.timed_out()),
            Err(poisoned) => {
                let (guard, result) = poisoned.into_inner();
                (guard, result.timed_out())
            }
        }
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
