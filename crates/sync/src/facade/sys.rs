//! The system's view of threads and CPUs: the calling thread, where it runs, and what it may use.
//!
//! Product code asks only this module, so that a backend of the [facade](crate) can replace the
//! system. Files, sockets and rings of the kernel are no part of it. A model checker's threads are
//! on no meaningful CPU, have no priority, and take every request for done.
//!
//! On Linux, the kernel is asked. Of any other system only the standard library's knowledge is
//! used: the number of CPUs. There the numbers of threads and CPUs are made up. A thread can't be
//! pinned or made more urgent (the error's kind is [`Unsupported`](io::ErrorKind::Unsupported)),
//! its activity isn't known, and setting a [`Timer`] wakes its waiter. `--cfg portable` has the
//! same on Linux, so that it can be tested there.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::facade::backend::system;

/// A thread of this process, by the system's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tid(u32);

impl Tid {
    /// Returns the calling thread. On systems other than Linux, threads are numbered in the order
    /// of their first call.
    pub fn current() -> Tid {
        Tid(system::tid())
    }

    /// Returns the thread with a number that [`Tid::number`] returned.
    pub fn from_number(number: u32) -> Tid {
        Tid(number)
    }

    /// Returns its number: never 0, never above `i32::MAX`.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of CPUs below [`Mask::CPUS`], as the system takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask([u64; Mask::CPUS as usize / 64]);

impl Mask {
    /// Number of CPUs that a mask has room for.
    pub const CPUS: u32 = 1024;

    /// Creates an empty mask.
    pub const fn none() -> Mask {
        Mask([0; Mask::CPUS as usize / 64])
    }

    /// Adds a CPU.
    ///
    /// # Panics
    /// If the mask has no room for it.
    pub fn add(&mut self, cpu: u32) {
        self.0[cpu as usize / 64] |= 1 << (cpu % 64);
    }

    /// Returns true if the mask has a CPU.
    pub fn has(&self, cpu: u32) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Returns the CPUs of the mask, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..Mask::CPUS).filter(|&cpu| self.has(cpu))
    }
}

/// True if the threads are those of a Linux that can be asked about them and about its CPUs:
/// `/proc` and `/sys` describe this process.
pub const KERNEL_THREADS: bool = system::KERNEL_THREADS;

/// Returns the CPU that the calling thread is on at this moment; it may have moved before the
/// caller uses the result. `None`: the system doesn't tell. Never blocks. It is a load of the
/// thread's own memory if the C library has the kernel keep it there (glibc since 2.35), otherwise
/// a call. On systems other than Linux it is no fact, but a number below [`cpus`] that the thread
/// keeps, so that threads are spread.
///
/// Under shuttle it is random, and may be no CPU of a small machine: that of the one thread under
/// all of its threads would change from replay to replay.
#[inline]
pub fn current_cpu() -> Option<u32> {
    system::current_cpu()
}

/// Returns the description of the machine, in the words of `corewise topo --from`, if no Linux
/// describes it: a simulated one.
pub fn machine() -> Option<String> {
    system::machine()
}

/// Returns the number of CPUs that the process may use, including its quota; at least 1.
pub fn cpus() -> usize {
    system::cpus()
}

/// Returns the CPUs that a thread (`None`: the calling one) may use and that are online. `None`:
/// the system doesn't tell, as on one with more CPUs than a mask has room for, or there is no such
/// thread.
pub fn affinity(thread: Option<Tid>) -> Option<Mask> {
    system::affinity(thread)
}

/// Restricts a thread (`None`: the calling one) to these CPUs. Threads that it starts later inherit
/// that.
///
/// # Errors
/// The system refuses: none of the CPUs may be used, or there is no such thread.
pub fn set_affinity(thread: Option<Tid>, mask: &Mask) -> io::Result<()> {
    system::set_affinity(thread, mask)
}

/// A scheduling policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_FIFO` at this priority: 1 to 99.
    Fifo(u8),
    /// The ordinary scheduler.
    Ordinary,
}

/// Sets the policy of the calling thread. A thread or process that it starts doesn't inherit a
/// raised priority.
///
/// # Errors
/// The system refuses, as it does without the permission.
pub fn set_policy(policy: Policy) -> io::Result<()> {
    system::set_policy(policy)
}

/// Limits of a process without the capability to exceed them, by `getrlimit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `RLIMIT_RTPRIO`: the highest priority of `SCHED_FIFO`; 0 is none.
    pub fifo: u64,
    /// `RLIMIT_NICE`: the lowest niceness is 20 less this.
    pub nice: u64,
    /// `RLIMIT_NOFILE`: the number of files that may be open, even with the capability.
    pub files: u64,
}

/// Returns the limits of this process.
pub fn limits() -> Limits {
    system::limits()
}

/// Returns true if the calling thread may have any priority, whatever the [limits]: it has the
/// capability `CAP_SYS_NICE`.
pub fn may_have_any_priority() -> bool {
    system::may_have_any_priority()
}

/// Returns the niceness of the calling thread, -20 to 19; 0 if the system doesn't tell.
pub fn niceness() -> i32 {
    system::niceness()
}

/// Sets the niceness of the calling thread, -20 to 19.
///
/// # Errors
/// The system refuses, as it does to make a thread more urgent without the permission.
pub fn set_niceness(nice: i32) -> io::Result<()> {
    if niceness() == nice {
        return Ok(());
    }
    system::set_niceness(nice)
}

/// Makes the system wake the calling thread on time. By default the kernel waits up to 50 us
/// longer, to wake several at once.
///
/// # Errors
/// The system refuses: it continues to wake the thread late.
pub fn wake_on_time() -> io::Result<()> {
    system::wake_on_time()
}

/// Returns the lowest address of the calling thread's stack, and its size in bytes; `None` if that
/// isn't known. Makes a system call.
pub fn stack() -> Option<(usize, usize)> {
    system::stack()
}

/// Checks that the limits of the process (`RLIMIT_AS`, `RLIMIT_DATA`) leave room for the stack of
/// one more thread, with some reserve. A thread that gets the last of it ends the process: it has
/// no memory to start with.
///
/// # Errors
/// As of a thread that can't be started: `WouldBlock`.
pub fn room_for_stack(bytes: usize) -> io::Result<()> {
    system::room_for_stack(bytes)
}

/// Returns the time that the calling thread has been on a CPU; `None` if the system doesn't tell.
pub fn own_cpu_time() -> Option<Duration> {
    system::own_cpu_time()
}

/// Returns true if the calling thread gets no more of its CPU than others that want it: it is an
/// ordinary one, and no more urgent than they usually are. False if the system doesn't tell. It
/// makes two system calls, of some hundred nanoseconds.
pub fn shares_its_cpu() -> bool {
    system::is_ordinary() && niceness() >= 0
}

/// A timer of the system. Setting it wakes no thread, and is a system call of a few hundred
/// nanoseconds. In a model there is none, as the checker can't see a thread wait for the system: it
/// would hold up all the others.
#[derive(Debug)]
pub struct Timer(system::Timer);

impl Timer {
    /// Creates a timer that isn't set.
    ///
    /// # Errors
    /// The system has no timer left.
    pub fn new() -> io::Result<Timer> {
        system::Timer::new().map(Timer)
    }

    /// Sets it to go off once, `after` from now, replacing an earlier setting. Zero: at once. A
    /// time that the system can't count to: never.
    ///
    /// # Errors
    /// The system refuses, and will do so again.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        self.0.set(after)
    }

    /// Sleeps until it has gone off since the last time, or without a reason.
    ///
    /// # Errors
    /// The system refuses, and will do so again.
    pub fn wait(&self) -> io::Result<()> {
        self.0.wait()
    }
}

/// Activity of a thread at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// The thread runs, or waits for a CPU.
    Ready,
    /// The thread waits for something else.
    Asleep,
    /// A debugger or a signal holds it.
    Stopped,
}

/// Returns the activity of a thread of this process; `None` if the system doesn't tell, as for one
/// that has ended. Reads a file of `/proc`.
pub fn run_state(thread: Tid) -> Option<RunState> {
    system::run_state(thread)
}

/// Figures of the scheduler about a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Time on a CPU so far. While the thread runs, it may be a scheduler tick behind.
    pub ran: Duration,
    /// True if it sleeps at this moment; one that waits for a CPU doesn't.
    pub asleep: bool,
}

/// Run time and sleep state of a thread, for another thread. User space has no scheduler hook that
/// tells when a worker sleeps. The kernel's own figures, polled now and then, are the next best.
/// Keeps two files open.
#[derive(Debug)]
pub struct CpuTime(system::CpuTime);

impl CpuTime {
    /// Opens the figures of a thread of this process.
    ///
    /// # Errors
    /// The thread has ended, or its files can't be opened.
    pub fn of(thread: Tid) -> io::Result<CpuTime> {
        system::CpuTime::of(thread.number()).map(CpuTime)
    }

    /// Reads the figures. `None`: the thread has ended, or the file makes no sense.
    pub fn read(&self) -> Option<Reading> {
        self.0.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no priorities")]
    fn an_ordinary_thread_shares_its_cpu_and_one_that_was_made_urgent_does_not() {
        if !KERNEL_THREADS {
            // The system doesn't tell.
            return assert!(!shares_its_cpu());
        }
        let ask = |prefer: fn() -> io::Result<()>| {
            std::thread::spawn(move || prefer().is_ok().then(shares_its_cpu))
                .join()
                .expect("no panic")
        };
        assert_eq!(ask(|| set_policy(Policy::Ordinary)), Some(niceness() >= 0));
        assert_eq!(ask(|| set_niceness(19)), Some(true));
        // Where the system permits them.
        assert_ne!(ask(|| set_policy(Policy::Fifo(1))), Some(true));
        assert_ne!(ask(|| set_niceness(-1)), Some(true));
    }

    #[test]
    fn a_timer_goes_off_at_once_where_it_is_set_to_zero_and_takes_a_time_beyond_all_clocks() {
        let timer = Timer::new().expect("the system has one");
        assert!(timer.set(Duration::MAX).is_ok());
        assert!(timer.set(Duration::ZERO).is_ok());
        assert!(timer.wait().is_ok(), "and it returns");
    }

    #[test]
    fn a_mask_holds_what_was_put_in_and_nothing_beyond_its_end() {
        let mut mask = Mask::none();
        [0, 63, 64, 1023].into_iter().for_each(|cpu| mask.add(cpu));
        assert_eq!(mask.iter().collect::<Vec<_>>(), [0, 63, 64, 1023]);
        assert!(mask.has(64) && !mask.has(1) && !mask.has(1024) && !mask.has(u32::MAX));
    }
}
