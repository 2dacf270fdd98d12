//! A lock for many readers or one writer, for simulated threads.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, TryLockError, TryLockResult};

use corewise_sim::{Access, futex_wake};

use super::super::atomic::{AtomicU32, Ordering};
use super::sleep;

/// Value of a lock that a writer has. A lower value is the number of readers.
const WRITER: u32 = u32::MAX;

/// A lock without poison.
pub(crate) struct RwLock<T> {
    /// A: the number of readers, or `WRITER`.
    word: AtomicU32,
    /// A: threads that sleep until `word` changes, or are about to.
    awaited: AtomicU32,
    /// L: by `word`.
    value: UnsafeCell<T>,
}

// SAFETY: the word lets readers share the value, or one writer have it.
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}
// SAFETY: it owns the value.
unsafe impl<T: Send> Send for RwLock<T> {}

impl<T> RwLock<T> {
    /// Creates a lock around a value.
    pub(crate) const fn new(value: T) -> Self {
        let (word, awaited) = (AtomicU32::new(0), AtomicU32::new(0));
        RwLock { word, awaited, value: UnsafeCell::new(value) }
    }

    /// Takes the lock for reading.
    ///
    /// # Errors
    /// None.
    #[track_caller]
    pub(crate) fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        self.take(Self::one_more);
        Ok(RwLockReadGuard { lock: self, site: Location::caller() })
    }

    /// Takes the lock for reading if no writer has it.
    ///
    /// # Errors
    /// A writer has the lock.
    #[track_caller]
    pub(crate) fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        if self.try_take(Self::one_more).is_err() {
            return Err(TryLockError::WouldBlock);
        }
        Ok(RwLockReadGuard { lock: self, site: Location::caller() })
    }

    /// Takes the lock for writing.
    ///
    /// # Errors
    /// None.
    #[track_caller]
    pub(crate) fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        self.take(Self::alone);
        Ok(RwLockWriteGuard { lock: self, site: Location::caller() })
    }

    /// Takes the lock for writing if it is free.
    ///
    /// # Errors
    /// The lock isn't free.
    #[track_caller]
    pub(crate) fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        if self.try_take(Self::alone).is_err() {
            return Err(TryLockError::WouldBlock);
        }
        Ok(RwLockWriteGuard { lock: self, site: Location::caller() })
    }

    fn one_more(now: u32) -> Option<u32> {
        (now != WRITER).then(|| now + 1)
    }

    fn alone(now: u32) -> Option<u32> {
        (now == 0).then_some(WRITER)
    }

    #[track_caller]
    fn take(&self, next: impl Fn(u32) -> Option<u32>) {
        while let Err(now) = self.try_take(&next) {
            // Published before the system compares the word: a thread that changes the word after
            // that wakes this one.
            self.awaited.fetch_add(1, Ordering::SeqCst);
            sleep(&self.word, now, None);
            self.awaited.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Tries to take the lock. An error: the word, which allows no `next`.
    #[track_caller]
    fn try_take(&self, next: impl Fn(u32) -> Option<u32>) -> Result<(), u32> {
        loop {
            let now = self.word.load(Ordering::Relaxed);
            let next = next(now).ok_or(now)?;
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            if self.word.compare_exchange(now, next, success, failure).is_ok() {
                return Ok(());
            }
        }
    }

    /// Releases the lock of a reader or writer.
    fn give_up(&self, one: u32, site: &'static Location<'static>) {
        let word = self.word.charged(Access::Locked, site);
        if word.fetch_sub(one, Ordering::SeqCst) == one && self.awaited.load(Ordering::SeqCst) > 0 {
            futex_wake(self.word.as_ptr().addr(), usize::MAX);
        }
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").finish_non_exhaustive()
    }
}

/// The right to read the value.
pub struct RwLockReadGuard<'a, T> {
    /// I: held as long as this lives.
    lock: &'a RwLock<T>,
    /// Place where it was taken, to which its release is charged.
    site: &'static Location<'static>,
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: no writer is in.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.give_up(1, self.site);
    }
}

/// The right to the value.
pub struct RwLockWriteGuard<'a, T> {
    /// I: held as long as this lives.
    lock: &'a RwLock<T>,
    /// Place where it was taken, to which its release is charged.
    site: &'static Location<'static>,
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: no other thread is in.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.give_up(WRITER, self.site);
    }
}
