//! Run time and sleep state of a thread, read from `/proc` by another thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::facade::sys::Reading;

/// The figures of one thread of this process. Keeps two files open.
#[derive(Debug)]
pub(crate) struct CpuTime {
    /// I: `schedstat`: nanoseconds on a CPU, exact. Kernels can be built without it.
    schedstat: Option<File>,
    /// I: `stat`: the state, and the time on a CPU in hundredths of a second.
    stat: File,
}

impl CpuTime {
    /// Opens the figures of the thread with this number (`gettid`).
    pub(crate) fn of(tid: u32) -> io::Result<CpuTime> {
        let open = |what: &str| File::open(format!("/proc/self/task/{tid}/{what}"));
        Ok(CpuTime { schedstat: open("schedstat").ok(), stat: open("stat")? })
    }

    /// Reads the figures. `None`: the thread has ended, or the file makes no sense.
    pub(crate) fn read(&self) -> Option<Reading> {
        // A line of `stat` is some 300 bytes at most, the thread's name included.
        let mut buffer = [0; 1024];
        let (state, ticks) = parse_stat(text(&self.stat, &mut buffer)?)?;
        let exact =
            self.schedstat.as_ref().and_then(|file| parse_schedstat(text(file, &mut buffer)?));
        Some(Reading {
            ran: exact.unwrap_or(Duration::from_millis(ticks.saturating_mul(10))),
            asleep: matches!(state, 'S' | 'D' | 'I' | 'T' | 't'),
        })
    }
}

fn text<'a>(file: &File, buffer: &'a mut [u8]) -> Option<&'a str> {
    let length = file.read_at(buffer, 0).ok()?;
    std::str::from_utf8(&buffer[..length]).ok()
}

/// Parses state, and time on a CPU in ticks of a hundredth of a second (`USER_HZ` in `/proc`).
fn parse_stat(line: &str) -> Option<(char, u64)> {
    // The thread's name stands in parentheses, and may itself contain spaces and parentheses.
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // Fields 14 and 15 of the line are time in user and in system mode; the state is field 3.
    let mut times = fields.skip(10).map(|field| field.parse::<u64>().ok());
    Some((state, times.next()??.checked_add(times.next()??)?))
}

/// Parses the nanoseconds on a CPU.
fn parse_schedstat(line: &str) -> Option<Duration> {
    line.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_threads_name() {
        let line = "24615 (a) b (c) R 1 1 1 0 -1 4194304 101 0 0 0 7 5 0 0 20 0 1 0 106897";
        assert_eq!(parse_stat(line), Some(('R', 12)));
        assert_eq!(parse_stat("24615 (cut"), None);
        assert_eq!(parse_stat("24615 (cut) S 1 2"), None);
        assert_eq!(parse_schedstat("285927 5065071 2\n"), Some(Duration::from_nanos(285_927)));
        assert_eq!(parse_schedstat(""), None);
    }

    #[test]
    fn another_threads_sleep_and_its_work_are_seen() {
        let (tell, told) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            let _ = released.recv();
            // It works until the other thread has seen it.
            while released.try_recv() == Err(mpsc::TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        });
        let tid = u32::try_from(told.recv().unwrap()).unwrap();
        let time = CpuTime::of(tid).unwrap();
        while !time.read().unwrap().asleep {
            std::thread::yield_now();
        }
        let before = time.read().unwrap().ran;
        release.send(()).unwrap();
        while time.read().unwrap().ran <= before {
            std::thread::yield_now();
        }
        assert!(!time.read().unwrap().asleep);
        drop(release);
        thread.join().unwrap();
        // The kernel takes a moment to forget a thread that has ended.
        while CpuTime::of(tid).ok().and_then(|time| time.read()).is_some() {
            std::thread::yield_now();
        }
    }
}
