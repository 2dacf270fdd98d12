//! stdout and stderr of a server, which doesn't depend on their readers. A reader may block: a pipe
//! is full, or a terminal was stopped. The server then waits once, drops the lines that follow, and
//! reports how many once the reader takes some again.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use corewise::sync::Mutex;
use corewise::sync::atomic::{AtomicU64, Ordering};
use indicatif::{MultiProgress, ProgressBar};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Bytes that a pipe with room takes without waiting.
const PIECE: usize = 4096;

static STDOUT: Stream = Stream::new(Duration::from_secs(10));
static STDERR: Stream = Stream::new(Duration::from_secs(2));

/// Writes lines to stdout. If lines were dropped, `lost` makes the line that reports how many.
pub(crate) fn to_stdout(lines: &str, lost: fn(u64) -> String) {
    let choice = anstream::AutoStream::choice(&io::stdout());
    STDOUT.put(io::stdout().as_fd(), &plain(choice, lines), lost);
}

/// Writes lines of styled text to stderr.
pub(crate) fn to_stderr(lines: &str, lost: fn(u64) -> String) {
    let choice = anstream::AutoStream::choice(&io::stderr());
    STDERR.put(io::stderr().as_fd(), &plain(choice, lines), lost);
}

/// Writes a line of the log to stderr unchanged.
pub(crate) fn log(line: &[u8], lost: fn(u64) -> String) {
    STDERR.put(io::stderr().as_fd(), line, lost);
}

/// Returns the blocked streams, each with the number of lines that it lacks. Never waits.
pub(crate) fn unread() -> Vec<(&'static str, u64)> {
    let all = [("stdout", &STDOUT), ("stderr", &STDERR)];
    let all = all.map(|(name, stream)| (name, stream.lacks.load(Ordering::Relaxed)));
    all.into_iter().filter(|(_, lines)| *lines != 0).collect()
}

/// Returns lines as bytes, with colours if these are wanted.
fn plain(choice: anstream::ColorChoice, lines: &str) -> Vec<u8> {
    let mut out = anstream::AutoStream::new(Vec::new(), choice);
    let _ = out.write_all(lines.as_bytes());
    out.into_inner()
}

struct Stream {
    /// Longest time without progress.
    patience: Duration,
    /// L: is the lock, held during a write; guards the rest.
    left: Mutex<Unwritten>,
    /// A: `lost` of that, for reports, which don't wait for the lock. Relaxed.
    lacks: AtomicU64,
}

struct Unwritten {
    /// Rest of lines that were written in part.
    rest: VecDeque<u8>,
    /// Number of dropped lines.
    lost: u64,
    /// First dropped line, unless it is long: reporting that one line was dropped would take as
    /// much room.
    first: Vec<u8>,
}

/// Longest dropped line that is kept.
const KEPT: usize = PIECE;

impl Stream {
    const fn new(patience: Duration) -> Stream {
        let left = Mutex::new(Unwritten { rest: VecDeque::new(), lost: 0, first: Vec::new() });
        Stream { patience, left, lacks: AtomicU64::new(0) }
    }

    fn put(&self, fd: BorrowedFd<'_>, lines: &[u8], lost: fn(u64) -> String) {
        let mut left = self.left.lock();
        let has_stopped = !left.rest.is_empty();
        if has_stopped {
            drain(fd, &mut left.rest, Duration::ZERO);
            if !left.rest.is_empty() {
                if left.lost == 0 && lines.len() <= KEPT {
                    left.first.extend(lines);
                }
                left.lost += lines.iter().filter(|byte| **byte == b'\n').count() as u64;
                self.lacks.store(left.lost, Ordering::Relaxed);
                return;
            }
        }
        self.lacks.store(0, Ordering::Relaxed);
        let first = std::mem::take(&mut left.first);
        match std::mem::take(&mut left.lost) {
            0 => {}
            1 if !first.is_empty() => left.rest.extend(first),
            several => left.rest.extend(lost(several).as_bytes()),
        }
        left.rest.extend(lines);
        drain(fd, &mut left.rest, self.patience);
    }
}

/// Writes as much as the reader takes, and waits up to `patience` for each next piece.
fn drain(fd: BorrowedFd<'_>, rest: &mut VecDeque<u8>, patience: Duration) {
    let patience = Timespec::try_from(patience).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
    while !rest.is_empty() {
        match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&patience)) {
            Ok(0) => return,
            Err(Errno::INTR) => continue,
            Ok(_) | Err(_) => {}
        }
        let piece = rest.make_contiguous();
        let piece = &piece[..piece.len().min(PIECE)];
        match rustix::io::write(fd, piece) {
            Ok(n) => drop(rest.drain(..n)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // There is no stream left to report that on.
            Err(_) => rest.clear(),
        }
    }
}

/// The progress bars on stderr. Other code writes its lines above them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bars(MultiProgress);

impl Bars {
    /// Shows a bar if stderr is a terminal; otherwise the bar stays invisible.
    pub(crate) fn show(&self, bar: ProgressBar) -> ProgressBar {
        self.0.add(bar)
    }

    /// Returns true if a bar is visible.
    pub(crate) fn can_be_seen(&self) -> bool {
        !self.0.is_hidden()
    }

    /// Removes a bar from the screen, before something is printed.
    pub(crate) fn end(&self, bar: &ProgressBar) {
        bar.finish_and_clear();
        self.0.remove(bar);
    }

    /// Removes all bars from the screen while `write` writes to it.
    pub(crate) fn above<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;

    use super::*;

    #[test]
    fn a_reader_that_has_stopped_is_waited_for_once_and_told_what_it_missed() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 2 * PIECE).unwrap();
        let stream = Stream::new(Duration::ZERO);
        let told = |n| format!("{n} left out\n");
        let line = format!("{}\n", "x".repeat(999));
        for _ in 0..1000 {
            stream.put(writer.as_fd(), line.as_bytes(), told);
        }
        let lacks = stream.lacks.load(Ordering::Relaxed);
        let mut read = vec![0; 1 << 20];
        let n = reader.read(&mut read).unwrap();
        read.truncate(n);
        stream.put(writer.as_fd(), b"last\n", told);
        assert_eq!(stream.lacks.load(Ordering::Relaxed), 0);
        drop(writer);
        reader.read_to_end(&mut read).unwrap();
        let read = String::from_utf8(read).unwrap();
        let whole = read.lines().filter(|read| *read == line.trim_end()).count();
        assert!((1..999).contains(&whole), "{whole}");
        assert_eq!(lacks, 1000 - whole as u64);
        assert_eq!(read, format!("{}{} left out\nlast\n", line.repeat(whole), 1000 - whole));
    }

    #[test]
    fn one_line_that_was_left_out_is_written_itself() {
        for (more, expected) in [(1, "1\nlast\n"), (2, "2 left out\nlast\n")] {
            let (mut reader, writer) = io::pipe().unwrap();
            rustix::pipe::fcntl_setpipe_size(&writer, 2 * PIECE).unwrap();
            let stream = Stream::new(Duration::ZERO);
            let told = |n| format!("{n} left out\n");
            let fill = format!("{}\n", "x".repeat(4 * PIECE - 1));
            stream.put(writer.as_fd(), fill.as_bytes(), told);
            for n in 1..=more {
                stream.put(writer.as_fd(), format!("{n}\n").as_bytes(), told);
            }
            // The reader takes both halves of the first line; then there is room.
            let mut read = vec![0; 2 * PIECE];
            reader.read_exact(&mut read).unwrap();
            stream.put(writer.as_fd(), b"", told);
            reader.read_exact(&mut read).unwrap();
            stream.put(writer.as_fd(), b"last\n", told);
            drop(writer);
            let mut rest = String::new();
            reader.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, expected);
        }
    }

    #[test]
    fn a_reader_that_is_only_slow_gets_all() {
        let (mut reader, writer) = io::pipe().unwrap();
        let stream = Stream::new(Duration::from_secs(60));
        let slow = thread::spawn(move || {
            let mut read = String::new();
            reader.read_to_string(&mut read).unwrap();
            read
        });
        let lines: String = (0..100_000).map(|n| format!("{n}\n")).collect();
        stream.put(writer.as_fd(), lines.as_bytes(), |_| unreachable!());
        drop(writer);
        assert_eq!(slow.join().unwrap(), lines);
    }

    #[test]
    fn without_a_reader_lines_are_dropped() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let stream = Stream::new(Duration::from_secs(60));
        stream.put(writer.as_fd(), b"line\n", |_| unreachable!());
        stream.put(writer.as_fd(), b"line\n", |_| unreachable!());
    }
}
