//! How a caller keeps its core for itself, and gives it back.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use corewise_sync::context::{BlockingObserver, ObserverGuard, observe};
use corewise_sync::{Condvar, Mutex, time};

use crate::calls::priority::{self, RunDelay};
use crate::meter::between;

use super::WaitStyle;

/// Above whom ticks, below who is called: interrupts get through, tasks don't.
const HELD_LEVEL: u8 = 45;
/// Of the ticker.
const TICKER_LEVEL: u8 = 40;

/// One CPU's core, as those who want it see it: the owner of the lock has it, or without one the
/// thread with the highest priority.
#[derive(Debug, Clone)]
pub(super) struct Core(Option<Arc<CoreLock>>);

impl Core {
    pub(super) fn new(way: WaitStyle) -> Core {
        Core((way == WaitStyle::Lock).then(Arc::default))
    }

    /// "Preemption off": from here on no task takes the core from the calling thread.
    pub(super) fn hold(&self) -> io::Result<()> {
        match &self.0 {
            None => priority::real_time(HELD_LEVEL),
            Some(lock) => {
                lock.take();
                Ok(())
            }
        }
    }

    /// "Preemption on".
    pub(super) fn release(&self) -> io::Result<()> {
        match &self.0 {
            None => priority::ordinary(),
            Some(lock) => {
                lock.give_back();
                Ok(())
            }
        }
    }

    /// Runs a call of a waiter that gives its core back when it blocks. A thread of low priority
    /// has nothing to do for that; where the core is a lock, it is held until the thread says that
    /// it blocks, and again after.
    pub(super) fn call<R>(&self, call: impl FnOnce() -> R) -> R {
        let Some(lock) = &self.0 else { return call() };
        lock.take();
        let observer: ObserverGuard = observe(Rc::new(GivesBack(Arc::clone(lock))));
        let result = call();
        drop(observer);
        lock.give_back();
        result
    }
}

/// The core of a machine on which nobody may have a priority.
#[derive(Debug, Default)]
pub(super) struct CoreLock {
    /// L: is the lock; guards whether the core is taken. Held for a moment, not while it is.
    taken: Mutex<bool>,
    free: Condvar,
}

impl CoreLock {
    fn take(&self) {
        let mut taken = self.taken.lock();
        while *taken {
            taken = self.free.wait(taken);
        }
        *taken = true;
    }

    fn give_back(&self) {
        *self.taken.lock() = false;
        self.free.notify_one();
    }
}

struct GivesBack(Arc<CoreLock>);

impl BlockingObserver for GivesBack {
    fn begin(&self) {
        self.0.give_back();
    }

    fn end(&self) {
        self.0.take();
    }
}

/// The urgent task that wants the core now and then, and how long it waits for it.
#[derive(Debug)]
pub(super) enum Ticker {
    Priority { delay: RunDelay, last: u64 },
    Lock(Arc<CoreLock>),
}

impl Ticker {
    /// The calling thread becomes urgent, where that is the way.
    pub(super) fn new(core: &Core) -> io::Result<Ticker> {
        Ok(match core {
            Core(None) => {
                priority::real_time(TICKER_LEVEL)?;
                let delay = RunDelay::of_this_thread()?;
                let last = delay.read()?;
                Ticker::Priority { delay, last }
            }
            Core(Some(lock)) => Ticker::Lock(Arc::clone(lock)),
        })
    }

    /// To be called when it has just woken up: for how long, in nanoseconds, it was ready and
    /// didn't have its core.
    pub(super) fn waited(&mut self) -> io::Result<u64> {
        match self {
            Ticker::Priority { delay, last } => {
                let before = std::mem::replace(last, delay.read()?);
                Ok(last.saturating_sub(before))
            }
            Ticker::Lock(lock) => {
                let ready = time::now();
                lock.take();
                let waited = between(ready, time::now());
                lock.give_back();
                Ok(waited)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_sync::context;

    #[test]
    fn a_core_that_is_a_lock_is_free_while_its_holder_blocks() {
        let core = Core::new(WaitStyle::Lock);
        let is_taken = || core.0.as_ref().is_some_and(|lock| *lock.taken.lock());
        core.hold().unwrap();
        assert!(is_taken());
        core.release().unwrap();
        assert!(!is_taken());
        core.call(|| {
            assert!(is_taken());
            context::blocking("test", || assert!(!is_taken()));
            assert!(is_taken());
        });
        assert!(!is_taken());
    }
}
