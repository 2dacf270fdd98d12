//! The kernel's `rt_mutex`, as far as threads of one priority see it: a queue, a hand-over to the
//! first in it, and a spin of the thread that comes first while the owner runs. Nobody of another
//! priority takes it in a workload, so none is inherited.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use corewise_sync::{Parker, SpinLock, Unparker, hint};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and threads wait.
const AWAITED: u32 = 2;

/// About what the way into the system and back takes, the locks there left out.
const CALL: Duration = Duration::from_nanos(300);

/// The mutex. It guards nothing but what is done meanwhile.
#[derive(Debug)]
pub(crate) struct PiMutex {
    /// A: `FREE`, `HELD` or `AWAITED`; but from `FREE` to `HELD` and back it is changed under
    /// `waiters`.
    word: AtomicU32,
    /// A: whether the owner runs; Relaxed, a spinning thread looks again.
    owner_runs: AtomicBool,
    /// L: is the lock; guards who waits, the first first.
    waiters: SpinLock<VecDeque<Unparker>>,
}

impl PiMutex {
    /// A new one.
    ///
    /// # Errors
    /// None.
    pub(crate) fn new() -> io::Result<PiMutex> {
        Ok(PiMutex {
            word: AtomicU32::new(FREE),
            owner_runs: AtomicBool::new(false),
            waiters: SpinLock::new(VecDeque::new()),
        })
    }

    /// Holds it for the time of a call; may sleep.
    #[inline]
    pub(crate) fn hold<R>(&self, f: impl FnOnce() -> R) -> R {
        if !self.take() {
            self.lock_slowly();
        }
        self.owner_runs.store(true, Ordering::Relaxed);
        let given = f();
        self.unlock();
        given
    }

    fn take(&self) -> bool {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn lock_slowly(&self) {
        hint::computed(CALL);
        let parker = Parker::new();
        let mut waiters = self.waiters.lock();
        if self.word.swap(AWAITED, Ordering::Acquire) == FREE {
            self.word.store(HELD, Ordering::Relaxed);
            return;
        }
        waiters.push_back(parker.unparker());
        let is_first = waiters.len() == 1;
        drop(waiters);
        while is_first && self.owner_runs.load(Ordering::Relaxed) {
            if parker.try_park() {
                return;
            }
            hint::spin_loop();
        }
        // It is handed over with the token.
        parker.park();
    }

    /// Gives it back. The calling thread has it.
    fn unlock(&self) {
        if self.word.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
        hint::computed(CALL);
        let mut waiters = self.waiters.lock();
        let next = waiters.pop_front();
        self.owner_runs.store(false, Ordering::Relaxed);
        let word = if waiters.is_empty() { HELD } else { AWAITED };
        self.word.store(word, Ordering::Release);
        drop(waiters);
        if let Some(next) = next {
            next.unpark();
        }
    }
}
