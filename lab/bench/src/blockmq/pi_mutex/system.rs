//! The system's: `PTHREAD_PRIO_INHERIT`, that is `FUTEX_LOCK_PI`. The kernel's own `rt_mutex`
//! stands behind it, with its queue by priority, its boost, its hand-over to the first waiter, and
//! its short spin while the owner runs. It is the very code that `rtlock` has there.

use std::io;

use corewise_sync::cell::UnsafeCell;

/// The mutex. It guards nothing but what is done meanwhile.
pub(crate) struct PiMutex {
    /// L: is the lock. Boxed: it must not move.
    raw: Box<UnsafeCell<libc::pthread_mutex_t>>,
}

// SAFETY: the mutex is touched through the pthread functions only, which are made for many threads.
unsafe impl Send for PiMutex {}
// SAFETY: as above.
unsafe impl Sync for PiMutex {}

impl PiMutex {
    /// A new one.
    ///
    /// # Errors
    /// The system has no such mutexes.
    pub(crate) fn new() -> io::Result<PiMutex> {
        let check = |code: libc::c_int| match code {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        };
        let raw = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the pointer is to memory for attributes, which this call makes.
        check(unsafe { libc::pthread_mutexattr_init(attributes) })?;
        // SAFETY: the attributes were made above, and are used by nobody else.
        let set =
            unsafe { libc::pthread_mutexattr_setprotocol(attributes, libc::PTHREAD_PRIO_INHERIT) };
        let init = |raw: *mut libc::pthread_mutex_t| {
            // SAFETY: as above; the mutex is nobody's yet and stays where it is, since it is boxed.
            unsafe { libc::pthread_mutex_init(raw, attributes) }
        };
        let made = check(set).and_then(|()| check(raw.with_mut(init)));
        // SAFETY: made above, and used no more.
        unsafe { libc::pthread_mutexattr_destroy(attributes) };
        made.map(|()| PiMutex { raw })
    }

    /// Holds it for the time of a call, in which a panic leaves it held; may sleep.
    ///
    /// # Panics
    /// Where the system refuses: the thread has it already.
    #[inline]
    pub(crate) fn hold<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: the mutex was made by `new`, and lives as long as `self`.
        let code = self.raw.with_mut(|raw| unsafe { libc::pthread_mutex_lock(raw) });
        assert!(code == 0, "the mutex can't be taken: {}", io::Error::from_raw_os_error(code));
        let given = f();
        // SAFETY: this thread took it.
        self.raw.with_mut(|raw| unsafe { libc::pthread_mutex_unlock(raw) });
        given
    }
}

impl Drop for PiMutex {
    fn drop(&mut self) {
        // SAFETY: nobody holds it, for a call that does borrows it.
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

    /// The one thing that makes it what a lock is on PREEMPT_RT.
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
                // Of a real-time priority p it is -1 - p.
                while priority() != -8 {
                    thread::yield_now();
                }
            });
        });
        assert!(priority() >= 0, "given back with the mutex");
    }
}
