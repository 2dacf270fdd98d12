//! Any system, by the standard library alone: no thread is pinned or has a priority, and CPU
//! numbers mean nothing. `crate::sys` documents each function.
//!
//! It is for systems other than Linux, and, with `--cfg portable`, for tests on Linux.

#[allow(unreachable_pub, reason = "loom's tests reach it")]
mod lot;

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::facade::backend::clock::now;
use crate::facade::backend::per_thread;
use crate::facade::lock::{Condvar, Mutex};
use crate::facade::sys::{Limits, Mask, Policy, Reading, RunState, Tid};

/// The kernel isn't asked about the threads.
pub(crate) const KERNEL_THREADS: bool = false;

/// The standard library's clock.
pub(crate) mod clock {
    use std::sync::OnceLock;
    use std::time::Instant;

    #[inline]
    pub(crate) fn precise() -> u64 {
        // The first moment that is requested. Only differences matter.
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        let since = BEGAN.get_or_init(Instant::now).elapsed();
        // Never 0.
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Returns the precise time: there is no cheaper clock.
    #[inline]
    pub(crate) fn coarse() -> u64 {
        precise()
    }

    /// Returns the precise time: the standard library has no clock that counts suspends.
    #[inline]
    pub(crate) fn with_suspends() -> u64 {
        precise()
    }
}

pub(crate) mod futex {
    use std::time::Duration;

    use super::lot::ParkingLot;
    use crate::facade::atomic::AtomicU32;

    /// Several lots, so that threads that sleep on different words seldom meet. They are the
    /// process's, as the kernel's are the system's: they only contain sleepers.
    static LOTS: [ParkingLot; 64] = [const { ParkingLot::new() }; 64];

    fn lot(word: &AtomicU32) -> &'static ParkingLot {
        // The upper bits of the product depend on all bits of the address.
        let mixed = (word.as_ptr().addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &LOTS[(mixed >> 58) as usize]
    }

    pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        lot(word).wait(word, expected, timeout);
    }

    pub(crate) fn wake(word: &AtomicU32, threads: u32) {
        lot(word).wake(word, threads);
    }
}

#[path = "../no_barrier.rs"]
pub(crate) mod barrier;

// The next thread's number. It is the process's, as threads are: the kernel would count them.
static NEXT: AtomicU32 = AtomicU32::new(1);

per_thread! {
    static TID: Cell<u32> = Cell::new(0);
    static CPU: Cell<Option<u32>> = Cell::new(None);
}

pub(crate) fn tid() -> u32 {
    if TID.get() == 0 {
        // No number is above `i32::MAX`: after that, numbers are reused.
        TID.set((NEXT.fetch_add(1, Ordering::Relaxed) & i32::MAX as u32).max(1));
    }
    TID.get()
}

/// Returns a number that the thread keeps: threads get all numbers in turn.
#[allow(clippy::unnecessary_wraps, reason = "as Linux's")]
#[inline]
pub(crate) fn current_cpu() -> Option<u32> {
    CPU.get().or_else(give_a_number)
}

#[cold]
fn give_a_number() -> Option<u32> {
    CPU.set(Some((tid() - 1) % u32::try_from(cpus()).unwrap_or(u32::MAX)));
    CPU.get()
}

pub(crate) fn machine() -> Option<String> {
    None
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get())
}

pub(crate) fn affinity(_thread: Option<Tid>) -> Option<Mask> {
    None
}

pub(crate) fn set_affinity(_thread: Option<Tid>, _mask: &Mask) -> io::Result<()> {
    refused("threads can be pinned on Linux only")
}

pub(crate) fn run_state(_thread: Tid) -> Option<RunState> {
    None
}

pub(crate) fn own_cpu_time() -> Option<Duration> {
    None
}

pub(crate) fn is_ordinary() -> bool {
    false
}

pub(crate) fn niceness() -> i32 {
    0
}

pub(crate) fn set_niceness(_nice: i32) -> io::Result<()> {
    refused("threads can be made more or less urgent on Linux only")
}

pub(crate) fn set_policy(_policy: Policy) -> io::Result<()> {
    refused("the scheduler can be told of threads on Linux only")
}

pub(crate) fn limits() -> Limits {
    Limits { fifo: 0, nice: 0, files: 1024 }
}

pub(crate) fn room_for_stack(_bytes: usize) -> io::Result<()> {
    Ok(())
}

pub(crate) fn may_have_any_priority() -> bool {
    false
}

pub(crate) fn wake_on_time() -> io::Result<()> {
    refused("threads can be woken on time on Linux only")
}

pub(crate) fn stack() -> Option<(usize, usize)> {
    None
}

fn refused(why: &str) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// A moment, and a thread that waits for it. Unlike with the system's timers, setting it wakes the
/// thread.
#[derive(Debug)]
pub(crate) struct Timer {
    /// L: is the lock; guards the moment.
    due: Mutex<Option<Instant>>,
    /// L: waited on with `due`.
    set: Condvar,
}

impl Timer {
    #[allow(clippy::unnecessary_wraps, reason = "as Linux's")]
    pub(crate) fn new() -> io::Result<Timer> {
        Ok(Timer { due: Mutex::new(None), set: Condvar::new() })
    }

    #[allow(clippy::unnecessary_wraps, reason = "as Linux's")]
    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        *self.due.lock() = now().checked_add(after);
        self.set.notify_all();
        Ok(())
    }

    #[allow(clippy::unnecessary_wraps, reason = "as Linux's")]
    pub(crate) fn wait(&self) -> io::Result<()> {
        let mut due = self.due.lock();
        loop {
            let left = due.map(|due| due.saturating_duration_since(now()));
            due = match left {
                None => self.set.wait(due),
                Some(Duration::ZERO) => {
                    *due = None;
                    return Ok(());
                }
                Some(left) => self.set.wait_timeout(due, left).0,
            };
        }
    }
}

/// A type without values: this system doesn't tell the CPU time of threads.
#[derive(Debug)]
pub(crate) enum CpuTime {}

impl CpuTime {
    pub(crate) fn of(_tid: u32) -> io::Result<CpuTime> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn read(&self) -> Option<Reading> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_numbers_and_another_has_others() {
        let numbers = || (tid(), current_cpu());
        let own = numbers();
        assert_eq!(numbers(), own);
        let (tid, cpu) = std::thread::spawn(numbers).join().expect("no panic");
        assert_ne!(tid, own.0);
        assert!(cpu.is_some_and(|cpu| (cpu as usize) < cpus()));
    }

    #[test]
    fn a_timer_that_is_set_anew_or_not_at_all_goes_off_once_it_is_due() {
        let timer = Timer::new().expect("it needs nothing");
        let hour = Duration::from_secs(3600);
        timer.set(hour).expect("it is some moment");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| timer.wait());
            timer.set(Duration::MAX).expect("no clock counts that far, so it is never");
            timer.set(Duration::ZERO).expect("it is now");
            waits.join().expect("no panic").expect("it doesn't fail");
        });
        assert!(timer.due.lock().is_none(), "it went off once");
    }
}
