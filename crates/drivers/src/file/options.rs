//! The options for opening a file device.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::DEFAULT_DEPTH;
use corewise_sync::text;

use super::fault_reporter::{FileEvent, Observer};
use super::loss::OnLoss;
use super::ring::FileRings;

/// The I/O path that a file device shall use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoPath {
    /// io_uring, or workers if it is refused.
    #[default]
    Auto,
    /// io_uring, or an error if it is refused.
    Uring,
    /// `pread` and `pwrite` on workers.
    Threads,
}

/// The I/O path that a file device uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathInUse {
    /// io_uring.
    Uring,
    /// `pread` and `pwrite` on workers.
    Threads,
}

impl fmt::Display for PathInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathInUse::Uring => "io_uring",
            PathInUse::Threads => "pread/pwrite",
        })
    }
}

/// The options for opening a file device.
#[derive(Clone)]
#[must_use]
pub struct FileOptions {
    pub(super) path: PathBuf,
    pub(super) size: Option<u64>,
    pub(super) block_size: u32,
    pub(super) read_only: bool,
    pub(super) io: IoPath,
    pub(super) direct: bool,
    pub(super) write_log: Option<PathBuf>,
    pub(super) rings: Option<FileRings>,
    pub(super) queues: Option<usize>,
    pub(super) depth: u32,
    pub(super) on_loss: OnLoss,
    pub(super) name: Option<String>,
    pub(super) observer: Option<Observer>,
}

impl fmt::Debug for FileOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileOptions")
            .field("path", &self.path)
            .field("size", &self.size)
            .field("io", &self.io)
            .finish_non_exhaustive()
    }
}

/// Time that an open waits for a lock that another process has. A killed server keeps its lock
/// until its requests in flight in the kernel have ended: those writes must not land after the next
/// server has begun.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Pause between two tries: there is no way to wait for a `flock` with a deadline.
pub(super) const LOCK_LOOK: Duration = Duration::from_millis(5);

impl FileOptions {
    /// Describes an existing file (or block device), as large as it is, with blocks of 512 bytes
    /// and [`IoPath::Auto`], through the host's page cache.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            size: None,
            block_size: 512,
            read_only: false,
            io: IoPath::Auto,
            direct: false,
            write_log: None,
            rings: None,
            queues: None,
            depth: DEFAULT_DEPTH,
            on_loss: OnLoss::Error,
            name: None,
            observer: None,
        }
    }

    /// Sets the size in bytes, a multiple of the block size. A file that doesn't exist or is empty
    /// is created with it (sparse); one that exists keeps its content and must have it already.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// Sets the block size in bytes: a power of two, at least 512.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = bytes;
        self
    }

    /// Opens for reading only; such opens share the file among each other. Creates nothing.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Sets the reaction to a truncation or an unlink of the file by another program.
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Sets the device's name in the log, beside the path. A name of more than 256 bytes is cut in
    /// the middle.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(text::bounded_name(name.into()));
        self
    }

    /// Sets the listener to events. The thread that finds one calls it: it must not block, nor wait
    /// for requests of the device. A panic in it is caught. It is dropped with the driver.
    pub fn observer(mut self, observer: impl Fn(&FileEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Sets the I/O path.
    pub fn io(mut self, io: IoPath) -> Self {
        self.io = io;
        self
    }

    /// Sets whether to go past the host's page cache (`O_DIRECT`). Opening fails if the file system
    /// doesn't do that with blocks as small as the device's. Memory that isn't aligned as the file
    /// system needs it is then copied once, and costs nothing else.
    ///
    /// By default the device uses the cache, as most programs that serve files do. Cached data is
    /// read at the speed of memory, and a write is done when it is in the cache. A flush promises
    /// the same either way. The way past the cache is for devices that are much larger than the
    /// memory, or whose users cache for themselves (a guest's own page cache, a database). Then
    /// nothing is cached twice, and a flush finds little to do, for nothing has gathered.
    pub fn direct(mut self, yes: bool) -> Self {
        self.direct = yes;
        self
    }

    /// Logs each change and each flush to this file, in the format of the kernel's `dm-log-writes`,
    /// so that a test can replay what a crash at any moment may leave. An entry is there before its
    /// change is acknowledged; a change that can't be logged fails. An existing log is continued.
    /// The log grows with each change, and outlives this process but not the machine. Workers do
    /// all changes then, which is slower. A read-only device logs nothing.
    pub fn write_log(mut self, path: impl Into<PathBuf>) -> Self {
        self.write_log = Some(path.into());
        self
    }

    /// Shares the rings, and the limit of workers, with other devices. By default the device has
    /// its own.
    pub fn rings(mut self, rings: &FileRings) -> Self {
        self.rings = Some(rings.clone());
        self
    }

    /// Sets the number of hardware queues, at least 1. The default is one if the device has a ring
    /// of its own, and one for each CPU if it shares rings or has none. A device that shares no
    /// rings has one for each, with a thread that sleeps until a request completes.
    pub fn queues(mut self, n: usize) -> Self {
        self.queues = Some(n.max(1));
        self
    }

    /// Sets the requests in flight for each hardware queue, 1 to 4096.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.clamp(1, 4096);
        self
    }
}
