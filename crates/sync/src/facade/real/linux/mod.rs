//! System calls of Linux. `crate::sys` documents each function.

mod cpu_time;
#[cfg(all(
    target_env = "gnu",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(miri)
))]
mod rseq;

use std::io;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{self, Pid, Resource};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

pub(crate) use self::cpu_time::CpuTime;
use crate::facade::sys::{Limits, Mask, Policy, RunState, Tid};

/// True: the threads are the kernel's.
pub(crate) const KERNEL_THREADS: bool = true;

/// The clock. See [`crate::time`].
pub(crate) mod clock {
    use rustix::time::{ClockId, clock_gettime};

    #[inline]
    pub(crate) fn precise() -> u64 {
        read(ClockId::Monotonic)
    }

    #[inline]
    pub(crate) fn coarse() -> u64 {
        read(ClockId::MonotonicCoarse)
    }

    #[inline]
    pub(crate) fn with_suspends() -> u64 {
        read(ClockId::Boottime)
    }

    #[inline]
    fn read(clock: ClockId) -> u64 {
        let now = clock_gettime(clock);
        // The clock begins with the system: it is never negative, and the sum lasts for centuries.
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

pub(crate) mod futex {
    use std::time::Duration;

    use rustix::thread::futex;

    use crate::facade::atomic::AtomicU32;

    #[inline]
    pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let spec = timeout.map(|left| futex::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        // Every outcome (woken, another value, interrupted, timed out) leads to another check.
        let _ = futex::wait(word, futex::Flags::PRIVATE, expected, spec.as_ref());
    }

    #[inline]
    pub(crate) fn wake(word: &AtomicU32, threads: u32) {
        let _ = futex::wake(word, futex::Flags::PRIVATE, threads);
    }
}

#[cfg(not(miri))]
pub(crate) mod barrier {
    use rustix::thread::{MembarrierCommand, membarrier};

    pub(crate) const WAITS: bool = true;

    pub(crate) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    pub(crate) fn everywhere() -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

#[cfg(miri)]
#[path = "../no_barrier.rs"]
pub(crate) mod barrier;

#[inline]
pub(crate) fn current_cpu() -> Option<u32> {
    #[cfg(all(
        target_env = "gnu",
        target_pointer_width = "64",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(miri)
    ))]
    if let Some(cpu) = rseq::current_cpu() {
        return Some(cpu);
    }
    current_cpu_by_call()
}

pub(crate) fn current_cpu_by_call() -> Option<u32> {
    if cfg!(miri) {
        // Miri doesn't know this system call, nor most of those below.
        return None;
    }
    u32::try_from(rustix::thread::sched_getcpu()).ok()
}

pub(crate) fn machine() -> Option<String> {
    None
}

pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get())
}

pub(crate) fn affinity(thread: Option<Tid>) -> Option<Mask> {
    let set = rustix::thread::sched_getaffinity(thread.map(pid)).ok()?;
    let mut mask = Mask::none();
    (0..Mask::CPUS).filter(|&cpu| set.is_set(cpu as usize)).for_each(|cpu| mask.add(cpu));
    Some(mask)
}

pub(crate) fn set_affinity(thread: Option<Tid>, mask: &Mask) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    mask.iter().for_each(|cpu| set.set(cpu as usize));
    Ok(rustix::thread::sched_setaffinity(thread.map(pid), &set)?)
}

pub(crate) fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

fn pid(thread: Tid) -> Pid {
    Pid::from_raw(thread.number() as i32).expect("no thread has the number 0")
}

pub(crate) fn run_state(thread: Tid) -> Option<RunState> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.number())).ok()?;
    // The name stands in parentheses before it, and may contain anything.
    let (_, state) = stat.rsplit_once(") ")?;
    match state.chars().next()? {
        'R' => Some(RunState::Ready),
        'T' | 't' => Some(RunState::Stopped),
        _ => Some(RunState::Asleep),
    }
}

pub(crate) fn own_cpu_time() -> Option<Duration> {
    if cfg!(miri) {
        return None;
    }
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(spent).ok()
}

pub(crate) fn is_ordinary() -> bool {
    if cfg!(miri) {
        return false;
    }
    // The system call itself: musl's function always fails.
    // SAFETY: 0 is the calling thread, and nothing is passed by address.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let known = libc::c_int::try_from(policy).map(|policy| policy & !libc::SCHED_RESET_ON_FORK);
    matches!(known, Ok(libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE))
}

/// Returns the niceness of the calling thread: on Linux each thread has its own, and 0 names the
/// calling one.
pub(crate) fn niceness() -> i32 {
    if cfg!(miri) {
        return 0;
    }
    process::getpriority_process(None).unwrap_or(0)
}

pub(crate) fn set_niceness(nice: i32) -> io::Result<()> {
    Ok(process::setpriority_process(Some(rustix::thread::gettid()), nice)?)
}

pub(crate) fn set_policy(policy: Policy) -> io::Result<()> {
    if cfg!(miri) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let (policy, priority): (_, libc::c_int) = match policy {
        Policy::Fifo(priority) => (libc::SCHED_FIFO, priority.into()),
        Policy::Ordinary => (libc::SCHED_OTHER, 0),
    };
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // The system call itself: musl's function always fails, and its `sched_param` is another struct
    // than the kernel's, which is one number. SAFETY: 0 is the calling thread, and the pointer is
    // to a local that lives throughout the call, which only reads it.
    let refused =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn limits() -> Limits {
    if cfg!(miri) {
        return Limits { fifo: 0, nice: 0, files: 1024 };
    }
    let limit = |resource| process::getrlimit(resource).current.unwrap_or(u64::MAX);
    let (fifo, nice) = (limit(Resource::Rtprio), limit(Resource::Nice));
    Limits { fifo, nice, files: limit(Resource::Nofile) }
}

/// Bytes that have to remain beside the stack of a new thread: for its alternative stack for
/// signals and its first allocations, and for those of threads that start beside it.
const BESIDE_STACK: usize = 2 << 20;

pub(crate) fn room_for_stack(bytes: usize) -> io::Result<()> {
    let is_free = |resource| process::getrlimit(resource).current.is_none();
    if cfg!(miri) || is_free(Resource::As) && is_free(Resource::Data) {
        return Ok(());
    }
    let len = bytes.saturating_add(BESIDE_STACK);
    // Mapped like a stack, as both limits count it.
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    // SAFETY: it was mapped above, with this length, and no other thread knows it.
    unsafe { libc::munmap(mapped, len) };
    Ok(())
}

pub(crate) fn may_have_any_priority() -> bool {
    if cfg!(miri) {
        return false;
    }
    let have = rustix::thread::capabilities(None);
    have.is_ok_and(|have| have.effective.contains(rustix::thread::CapabilitySet::SYS_NICE))
}

pub(crate) fn wake_on_time() -> io::Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    Ok(rustix::thread::set_current_timer_slack(std::num::NonZero::new(1))?)
}

pub(crate) fn stack() -> Option<(usize, usize)> {
    use std::mem::MaybeUninit;
    use std::ptr;

    if cfg!(miri) {
        // An interpreter has no stack to measure.
        return None;
    }
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the calling thread is one, and the attributes are room for its.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the call above has filled them; both results have room.
    let told =
        unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size) } == 0;
    // SAFETY: they were filled, and aren't used again.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    told.then_some((lowest.addr(), size))
}

#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Timer> {
        Ok(Timer(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?))
    }

    pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would mean: never.
        let after = after.max(Duration::from_nanos(1));
        let after = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: zero, it_value: after };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    pub(crate) fn wait(&self) -> io::Result<()> {
        match rustix::io::read(&self.0, &mut [0; 8]) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
