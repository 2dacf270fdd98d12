//! A mutex that inherits priorities, as a spin lock of the kernel does on PREEMPT_RT.
//!
//! It is the system's, with `PTHREAD_PRIO_INHERIT`, that is `FUTEX_LOCK_PI`. Behind it is the
//! kernel's own `rt_mutex`: a queue by priority, a boost of the owner, a hand-over to the first
//! waiter, and a short spin while the owner runs. `rtlock` uses the same code.

use std::io;

use corewise_sync::cell::UnsafeCell;

/// The mutex. It guards no data of its own.
pub(super) struct PiMutex {
    /// L: is the lock. Boxed: it must not move.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
}

// SAFETY: only the pthread functions touch the mutex, and many threads may call them at once.
unsafe impl Send for PiMutex {}
// SAFETY: as above.
unsafe impl Sync for PiMutex {}

impl Default for PiMutex {
    fn default() -> PiMutex {
        PiMutex::new().expect("Linux has mutexes that inherit priorities")
    }
}

impl PiMutex {
    /// Creates a free mutex.
    ///
    /// # Errors
    /// The system has no such mutexes.
    fn new() -> io::Result<PiMutex> {
        let check = |code: libc::c_int| match code {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        };
        let raw = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the pointer is to memory for attributes, which this call initializes.
        check(unsafe { libc::pthread_mutexattr_init(attributes) })?;
        // SAFETY: the attributes were initialized above, and no other thread uses them.
        let set =
            unsafe { libc::pthread_mutexattr_setprotocol(attributes, libc::PTHREAD_PRIO_INHERIT) };
        let init = |raw: *mut libc::pthread_mutex_t| {
            // SAFETY: as above. No other thread has the mutex yet, and it never moves: it is boxed.
            unsafe { libc::pthread_mutex_init(raw, attributes) }
        };
        let made = check(set).and_then(|()| check(raw.with_mut(init)));
        // SAFETY: the attributes were initialized above, and are used no more.
        unsafe { libc::pthread_mutexattr_destroy(attributes) };
        made.map(|()| PiMutex { raw })
    }

    /// Calls `f` while the mutex is held. May sleep. A panic of `f` leaves the mutex held.
    ///
    /// # Panics
    /// If the system refuses: the thread holds the mutex already.
    #[inline]
    pub(super) fn hold<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: `new` initialized the mutex, which lives as long as `self`.
        let code = self.raw.with_mut(|raw| unsafe { libc::pthread_mutex_lock(raw) });
        assert!(code == 0, "the mutex can't be taken: {}", io::Error::from_raw_os_error(code));
        let given = f();
        // SAFETY: this thread took the mutex above.
        self.raw.with_mut(|raw| unsafe { libc::pthread_mutex_unlock(raw) });
        given
    }
}

impl Drop for PiMutex {
    fn drop(&mut self) {
        // SAFETY: no thread holds the mutex: a call that holds it borrows `self`.
        self.raw.with_mut(|raw| unsafe { libc::pthread_mutex_destroy(raw) });
    }
}

impl std::fmt::Debug for PiMutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PiMutex").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use procfs::process::Process;

    use super::*;
    use crate::calls::priority;

    /// Checks the property that makes the mutex a model of a lock on PREEMPT_RT.
    #[test]
    fn the_owner_inherits_the_priority_of_a_waiter() {
        if !priority::may_be_real_time() {
            return;
        }
        let priority = || -> i64 {
            let id = rustix::thread::gettid().as_raw_nonzero();
            let task = Process::myself().unwrap().task_from_tid(id.get()).unwrap();
            task.stat().unwrap().priority
        };
        let mutex = PiMutex::new().unwrap();
        thread::scope(|scope| {
            mutex.hold(|| {
                scope.spawn(|| {
                    priority::real_time(7).unwrap();
                    mutex.hold(|| ());
                });
                // The kernel shows the real-time priority p as -1 - p.
                while priority() != -8 {
                    thread::yield_now();
                }
            });
        });
        assert!(priority() >= 0, "given back with the mutex");
    }
}
