//! The priority of threads, and how long one was ready to run and didn't.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Gives the calling thread the real-time priority `level` (1 to 99, SCHED_FIFO): it runs before
/// every ordinary one, and before those of a lower level.
///
/// # Errors
/// The process may not. Root may, and who has `CAP_SYS_NICE` or a large enough `RLIMIT_RTPRIO`.
pub fn real_time(level: u8) -> io::Result<()> {
    schedule(libc::SCHED_FIFO, level.into())
}

/// Makes the calling thread an ordinary one again; it keeps its nice value.
///
/// # Errors
/// The system's; none is known for that.
pub fn ordinary() -> io::Result<()> {
    schedule(libc::SCHED_OTHER, 0)
}

fn schedule(policy: libc::c_int, level: libc::c_int) -> io::Result<()> {
    // The kernel's `sched_param` is one number; musl's function for it always fails.
    // SAFETY: the pointer is to a local that lives through the call; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const level) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the calling thread the least share of its CPU (nice 19).
pub fn lowest() {
    // SAFETY: it takes numbers only; 0 is the calling thread, on Linux. Lowering is always allowed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

/// Whether threads of this process may have a real-time priority. Asked in a thread of its own.
pub fn may_be_real_time() -> bool {
    std::thread::spawn(|| real_time(1).is_ok()).join().unwrap_or(false)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_delay_grows_only() {
        let Ok(delay) = RunDelay::of_this_thread() else { return };
        let before = delay.read().unwrap();
        std::thread::yield_now();
        assert!(delay.read().unwrap() >= before);
    }

    #[test]
    fn an_ordinary_thread_stays_one() {
        std::thread::spawn(|| {
            lowest();
            if real_time(1).is_ok() {
                assert!(may_be_real_time());
            }
            ordinary().unwrap();
        })
        .join()
        .unwrap();
    }
}
