//! System calls of the simulated machine. `crate::sys` documents each function.

use std::io;
use std::time::Duration;

use crate::facade::sys::{Limits, Mask, Policy, Reading, RunState, Tid};

/// The threads are the simulator's.
pub(crate) const KERNEL_THREADS: bool = false;

pub(crate) mod futex {
    use std::time::Duration;

    use crate::facade::atomic::{AtomicU32, Ordering};

    pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let is_expected = || word.load(Ordering::Relaxed) == expected;
        corewise_sim::futex_wait(word.as_ptr().addr(), is_expected, timeout);
    }

    pub(crate) fn wake(word: &AtomicU32, threads: u32) {
        corewise_sim::futex_wake(word.as_ptr().addr(), threads as usize);
    }
}

pub(crate) mod barrier {
    /// Registering takes no time here.
    pub(crate) const WAITS: bool = false;

    pub(crate) fn register() -> bool {
        true
    }

    pub(crate) fn everywhere() -> bool {
        corewise_sim::membarrier();
        true
    }
}

/// Returns the simulator's id of a thread: it counts from 0, Linux never does.
fn own(thread: Tid) -> corewise_sim::Tid {
    corewise_sim::Tid::from_number(thread.number() - 1)
}

pub(crate) fn current_cpu() -> Option<u32> {
    u32::try_from(corewise_sim::current_cpu()?).ok()
}

pub(crate) fn machine() -> Option<String> {
    corewise_sim::description()
}

pub(crate) fn cpus() -> usize {
    affinity(None).map_or(1, |mask| mask.iter().count())
}

fn told(mask: corewise_sim::Mask) -> Mask {
    let mut told = Mask::none();
    mask.iter().for_each(|cpu| told.add(u32::try_from(cpu).unwrap_or(u32::MAX)));
    told
}

pub(crate) fn affinity(thread: Option<Tid>) -> Option<Mask> {
    let thread = thread.map(own).or_else(corewise_sim::current);
    thread.and_then(corewise_sim::affinity).map(told)
}

pub(crate) fn set_affinity(thread: Option<Tid>, mask: &Mask) -> io::Result<()> {
    let thread = thread.map(own).or_else(corewise_sim::current);
    let mut wanted = corewise_sim::Mask::EMPTY;
    mask.iter().for_each(|cpu| wanted.set(cpu as usize));
    match thread {
        Some(thread) if corewise_sim::set_affinity(thread, wanted) => Ok(()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

pub(crate) fn tid() -> u32 {
    corewise_sim::current().map_or(1, |tid| tid.number() + 1)
}

pub(crate) fn run_state(thread: Tid) -> Option<RunState> {
    let (_, asleep) = corewise_sim::reading(own(thread))?;
    Some(if asleep { RunState::Asleep } else { RunState::Ready })
}

pub(crate) fn own_cpu_time() -> Option<Duration> {
    corewise_sim::is_simulated().then(|| Duration::from_nanos(corewise_sim::thread_time()))
}

pub(crate) fn is_ordinary() -> bool {
    corewise_sim::is_ordinary()
}

pub(crate) fn niceness() -> i32 {
    0
}

pub(crate) fn set_niceness(_nice: i32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn set_policy(policy: Policy) -> io::Result<()> {
    let policy = match policy {
        Policy::Fifo(priority) => corewise_sim::Policy::Fifo(priority),
        Policy::Ordinary => corewise_sim::Policy::Normal,
    };
    if corewise_sim::set_policy(policy) {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

pub(crate) fn limits() -> Limits {
    // All have the same niceness: no thread may raise its own.
    let fifo = if corewise_sim::has_real_time() { 99 } else { 0 };
    Limits { fifo, nice: 0, files: 1024 }
}

pub(crate) fn room_for_stack(_bytes: usize) -> io::Result<()> {
    Ok(())
}

pub(crate) fn may_have_any_priority() -> bool {
    false
}

pub(crate) fn wake_on_time() -> io::Result<()> {
    corewise_sim::wake_on_time();
    Ok(())
}

pub(crate) fn stack() -> Option<(usize, usize)> {
    corewise_sim::stack()
}

#[derive(Debug)]
pub(crate) struct Timer(corewise_sim::Timer);

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        corewise_sim::Timer::new().map(Timer).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        self.0.set(u64::try_from(after.as_nanos()).ok());
        Ok(())
    }

    pub(crate) fn wait(&self) -> io::Result<()> {
        self.0.wait();
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct CpuTime(corewise_sim::Tid);

impl CpuTime {
    pub(crate) fn of(tid: u32) -> io::Result<CpuTime> {
        Ok(CpuTime(own(Tid::from_number(tid))))
    }

    pub(crate) fn read(&self) -> Option<Reading> {
        let (ran, asleep) = corewise_sim::reading(self.0)?;
        Some(Reading { ran: Duration::from_nanos(ran), asleep })
    }
}
