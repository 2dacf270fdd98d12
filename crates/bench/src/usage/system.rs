//! What the process has used so far, by the system.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Usage;

impl Usage {
    pub(crate) fn now() -> Usage {
        // SAFETY: all zeroes is a valid `rusage`: it holds integers only.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a `rusage` that lives through the call. It can't fail with these
        // arguments; if it did, the zeroes would be seen in the figures.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let time = |time: libc::timeval| {
            let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
            seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
        };
        Usage {
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
            voluntary_switches: u64::try_from(usage.ru_nvcsw).unwrap_or(0),
            // The kernel gives kibibytes.
            peak_rss: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        }
    }
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// How many threads this process has.
pub(crate) fn threads() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:"))?;
    line.trim().parse().ok()
}

/// How long the thread that made it has been ready to run without running, as the kernel counts it
/// (`run_delay` in `/proc/self/task/TID/schedstat`). How late a timer fires isn't in it, nor what an
/// idle CPU takes to come back.
#[derive(Debug)]
pub struct RunDelay {
    file: File,
}

impl RunDelay {
    /// Of the calling thread.
    ///
    /// # Errors
    /// The kernel doesn't count it.
    pub fn of_this_thread() -> io::Result<RunDelay> {
        let id = rustix::thread::gettid().as_raw_nonzero();
        let file = File::open(format!("/proc/self/task/{id}/schedstat"))?;
        let delay = RunDelay { file };
        delay.read()?;
        Ok(delay)
    }

    /// In all, so far, in nanoseconds.
    ///
    /// # Errors
    /// The kernel doesn't count it.
    pub fn read(&self) -> io::Result<u64> {
        let mut text = [0; 96];
        let length = self.file.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..length]).unwrap_or_default();
        let delay = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        delay.ok_or_else(|| io::Error::other(format!("'{text}' is no schedstat")))
    }
}
