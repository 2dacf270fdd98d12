//! Figures of the process, from the system.

use std::io;
use std::time::Duration;

use procfs::process::Process;
use rustix::time::{ClockId, clock_gettime};

use super::Usage;

impl Usage {
    pub(crate) fn now() -> Usage {
        // SAFETY: all zeroes is a valid `rusage`: it holds integers only.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a `rusage` that lives through the call. The call can't fail
        // with these arguments; a failure would show as zeroes in the figures.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let time = |time: libc::timeval| {
            let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
            seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
        };
        Usage {
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
            voluntary_switches: u64::try_from(usage.ru_nvcsw).unwrap_or(0),
            // The kernel returns kibibytes.
            peak_rss: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

/// Returns the CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the number of threads of this process.
pub(crate) fn threads() -> Option<u64> {
    Process::myself().and_then(|own| own.stat()).ok()?.num_threads.try_into().ok()
}

/// Returns the nanoseconds for which the calling thread has been ready to run without running, as
/// the kernel counts them (`run_delay` in `/proc/thread-self/schedstat`). The lateness of a timer
/// isn't in it, nor the time in which an idle CPU comes back.
///
/// # Errors
/// The kernel doesn't count it.
pub fn run_delay() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let delay = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    delay.ok_or_else(|| io::Error::other(format!("'{text}' is no schedstat")))
}
