//! Locks over a word, as in the standard library, for simulated threads.

mod readers;

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::Duration;

use corewise_sim::{Access, futex_wait, futex_wake, spin_loop};

use super::atomic::{AtomicU32, Ordering};
pub(crate) use readers::RwLock;
pub use readers::{RwLockReadGuard, RwLockWriteGuard};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Value of a held lock for which threads may sleep.
const AWAITED: u32 = 2;

/// Number of checks of the word before a thread sleeps, as in the standard library.
const SPINS: u32 = 100;

/// A mutex without poison.
pub(crate) struct Mutex<T: ?Sized> {
    /// A: `FREE`, `HELD` or `AWAITED`.
    word: AtomicU32,
    /// L: by `word`.
    value: UnsafeCell<T>,
}

// SAFETY: the word lets one thread at a time have the value.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}
// SAFETY: it owns the value.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// Creates a mutex around a value.
    pub(crate) const fn new(value: T) -> Self {
        Mutex { word: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// None.
    pub(crate) fn into_inner(self) -> LockResult<T> {
        Ok(self.value.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the mutex.
    ///
    /// # Errors
    /// None.
    #[track_caller]
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if !self.take() {
            let began = corewise_sim::moment();
            self.lock_slowly();
            corewise_sim::lock_waited(began);
        }
        Ok(MutexGuard { mutex: self, site: Location::caller() })
    }

    /// Takes the mutex if it is free.
    ///
    /// # Errors
    /// The mutex isn't free.
    #[track_caller]
    pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        if self.take() {
            Ok(MutexGuard { mutex: self, site: Location::caller() })
        } else {
            Err(TryLockError::WouldBlock)
        }
    }

    /// Returns the value: no other thread has it.
    ///
    /// # Errors
    /// None.
    pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
        Ok(self.value.get_mut())
    }

    #[track_caller]
    fn take(&self) -> bool {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[track_caller]
    fn lock_slowly(&self) {
        let mut state = self.spin();
        if state == FREE && self.take() {
            return;
        }
        loop {
            if state != AWAITED && self.word.swap(AWAITED, Ordering::Acquire) == FREE {
                return;
            }
            sleep(&self.word, AWAITED, None);
            state = self.spin();
        }
    }

    #[track_caller]
    fn spin(&self) -> u32 {
        for _ in 0..SPINS {
            let state = self.word.load(Ordering::Relaxed);
            if state != HELD {
                return state;
            }
            spin_loop();
        }
        self.word.load(Ordering::Relaxed)
    }

    fn unlock(&self, site: &'static Location<'static>) {
        let word = self.word.charged(Access::Locked, site);
        if word.swap(FREE, Ordering::Release) == AWAITED {
            futex_wake(self.word.as_ptr().addr(), 1);
        }
    }
}

fn sleep(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> bool {
    let timeout = timeout.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let address = word.as_ptr().addr();
    let woken = futex_wait(address, || word.load(Ordering::Relaxed) == expected, timeout);
    woken != Some(corewise_sim::Woken::Timeout)
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").finish_non_exhaustive()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

/// The right to the value of a mutex.
pub struct MutexGuard<'a, T: ?Sized> {
    /// I: held as long as this lives.
    mutex: &'a Mutex<T>,
    /// Place where it was taken, to which its release is charged.
    site: &'static Location<'static>,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.unlock(self.site);
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Result of a wait with a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns true if the time ran out.
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    /// A: counts notifications.
    told: AtomicU32,
}

impl Condvar {
    /// Creates a condition variable.
    pub(crate) const fn new() -> Self {
        Condvar { told: AtomicU32::new(0) }
    }

    /// Releases the lock, sleeps, and takes the lock again.
    ///
    /// # Errors
    /// None.
    pub(crate) fn wait<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
    ) -> LockResult<MutexGuard<'a, T>> {
        self.wait_for(guard, None).map(|(guard, _)| guard).map_err(|_| unreachable!("no poison"))
    }

    /// Waits like [`Condvar::wait`], for at most `timeout`.
    ///
    /// # Errors
    /// None.
    pub(crate) fn wait_timeout<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        self.wait_for(guard, Some(timeout))
    }

    fn wait_for<'a, T: ?Sized>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let seen = self.told.load(Ordering::Relaxed);
        let mutex = guard.mutex;
        drop(guard);
        let woken = sleep(&self.told, seen, timeout);
        mutex
            .lock()
            .map(|guard| (guard, WaitTimeoutResult(!woken)))
            .map_err(|_| unreachable!("no poison"))
    }

    /// Wakes one waiter.
    pub(crate) fn notify_one(&self) {
        self.told.fetch_add(1, Ordering::Relaxed);
        futex_wake(self.told.as_ptr().addr(), 1);
    }

    /// Wakes all waiters.
    pub(crate) fn notify_all(&self) {
        self.told.fetch_add(1, Ordering::Relaxed);
        futex_wake(self.told.as_ptr().addr(), usize::MAX);
    }
}
