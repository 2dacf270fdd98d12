//! A lock for sections of some nanoseconds: one locked operation takes it, and a plain store
//! releases it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::facade::atomic::{AtomicBool, Ordering};
use crate::facade::cell::UnsafeCell;
use crate::facade::hint;
use crate::facade::thread;

pub use crate::facade::backend::{SpinLock, SpinLockGuard};

/// Number of checks of a waiter before it first yields: some microseconds.
const LOOKS: u32 = 64;
/// Number of checks and yields before it first sleeps.
const YIELDED: u32 = LOOKS + 16;
/// Number of successive calls of [`outwait`] that end with the first sleep.
pub const TRIES: u32 = if hint::IN_MODEL { 1 } else { YIELDED + 1 };
/// Duration of each sleep.
const SLEEP: Duration = Duration::from_micros(50);

/// A mutual-exclusion lock that spins.
///
/// A [`Mutex`](crate::Mutex) has two locked operations, one to take it and one to release it, since
/// the releasing thread has to learn whether a thread sleeps. Here no thread sleeps for long:
/// releasing is a plain store, and an uncontended section costs half. The price is that no thread
/// wakes a waiter. It spins, then yields, then sleeps for 50 us at a time, so that a holder gets
/// its CPU back even from a waiter with a higher priority. So it suits sections that are a few
/// dozen instructions, nearly never contended, and call neither user code nor the system. Waiters
/// have no order.
pub struct Spin<T> {
    /// L: is the lock; guards `value`.
    locked: AtomicBool,
    /// L: `locked`.
    value: UnsafeCell<T>,
}

// SAFETY: the lock moves the value between threads, and gives one at a time a reference to it.
unsafe impl<T: Send> Send for Spin<T> {}
// SAFETY: as above: `&Spin` only gives a reference to the holder of the lock.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        Spin { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock; may sleep.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        if !self.take() {
            self.lock_slowly();
        }
        SpinGuard { lock: self }
    }

    /// Takes the lock if it is free; never waits.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        self.take().then(|| SpinGuard { lock: self })
    }

    /// Tries to take the lock. No swap: a taken lock isn't written, and loom would take a write
    /// that changes nothing for one that may come after the holder's last.
    #[inline]
    #[track_caller]
    fn take(&self) -> bool {
        // Acquire pairs with the Release of the last holder.
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        self.locked.compare_exchange(false, true, success, failure).is_ok()
    }

    #[cold]
    #[track_caller]
    fn lock_slowly(&self) {
        let mut tries = 0;
        loop {
            // The waiter only reads, so that the holder keeps the line.
            while self.locked.load(Ordering::Relaxed) {
                outwait(tries);
                tries = tries.saturating_add(1);
            }
            if self.take() {
                return;
            }
        }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T> fmt::Debug for Spin<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spin").field("locked", &self.locked.load(Ordering::Relaxed)).finish()
    }
}

/// A guard of a [`Spin`]; dropping it releases the lock.
#[must_use]
pub struct SpinGuard<'a, T> {
    lock: &'a Spin<T>,
}

// SAFETY: a shared guard only gives shared references.
unsafe impl<T: Sync> Sync for SpinGuard<'_, T> {}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock, and lends the value as it is borrowed itself.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire of the next holder.
        self.lock.locked.store(false, Ordering::Release);
    }
}

impl<T: fmt::Debug> fmt::Debug for SpinGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Waits a moment for another thread, which is in the middle of a step of some instructions and
/// doesn't signal its end. `tries`: the caller's successive checks so far. It spins at first, then
/// yields, since the other may have the same CPU, and then sleeps for 50 us each time, since it may
/// have a lower priority too. In a model it yields.
#[cold]
pub fn outwait(tries: u32) {
    match tries {
        _ if hint::IN_MODEL => thread::yield_now(),
        ..LOOKS => hint::spin_loop(),
        YIELDED.. => thread::sleep(SLEEP),
        _ => thread::yield_now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_that_outlasts_its_spinning_gets_the_lock_too() {
        let lock = Spin::new(false);
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        std::thread::scope(|scope| {
            scope.spawn(|| *lock.lock() = true);
            for tries in 0..YIELDED + 2 {
                outwait(tries);
            }
            drop(held);
        });
        assert!(*lock.try_lock().expect("it is free again"));
    }
}
