//! How a file device is opened: its options.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::DEFAULT_DEPTH;
use corewise_sync::text;

use super::alarm::{FileEvent, Observer};
use super::length::OnLoss;
use super::ring::FileRings;

/// Which way a file device shall do its I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoPath {
    /// io_uring, or workers where it is refused.
    #[default]
    Auto,
    /// io_uring, or an error where it is refused.
    Uring,
    /// `pread` and `pwrite` on workers.
    Threads,
}

/// Which way a file device does its I/O.
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

/// How to open a file device.
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

/// How long an open waits for a lock that somebody else has. A server that was killed keeps its
/// lock until what it had in flight in the kernel has ended: those writes must not land behind the
/// next server's back.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(2);
/// How often it looks meanwhile: there is no way to wait for a `flock` with a deadline.
pub(super) const LOCK_LOOK: Duration = Duration::from_millis(5);

impl FileOptions {
    /// An existing file (or block device), as large as it is, with blocks of 512 bytes and
    /// [`IoPath::Auto`], through the host's page cache.
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

    /// The size in bytes, a multiple of the block size. A file that doesn't exist or is empty is
    /// created with it (sparse); one that exists keeps its content and must have it already.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }

    /// The block size in bytes: a power of two, at least 512.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = bytes;
        self
    }

    /// Opens for reading only; such opens share the file among each other. Creates nothing.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// What becomes of it once somebody else has truncated or unlinked the file.
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// What the log is to call the device, beside the path. Of a name of more than 256 bytes the
    /// middle is left out.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(text::bounded_name(name.into()));
        self
    }

    /// Is told what happens, by the thread that finds it: it must not block, nor wait for requests
    /// of the device. A panic in it is caught. It is dropped with the driver.
    pub fn observer(mut self, observer: impl Fn(&FileEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Which way to do I/O.
    pub fn io(mut self, io: IoPath) -> Self {
        self.io = io;
        self
    }

    /// Whether to go past the host's page cache (`O_DIRECT`); or an error where the file system
    /// doesn't do that with blocks as small as the device's. Memory that isn't aligned as the file
    /// system wants it is then copied once, and costs nothing else.
    ///
    /// By default the device uses the cache, as most programs that serve files do: what it holds is
    /// read at the speed of memory, and a write is done when it is there. A flush promises the same
    /// either way. Past the cache is for devices that are much larger than the memory, or whose
    /// users cache for themselves (a guest's own page cache, a database): nothing is cached twice,
    /// and a flush finds little to do, for nothing has gathered.
    pub fn direct(mut self, yes: bool) -> Self {
        self.direct = yes;
        self
    }

    /// Logs each change and each flush to this file, in the format of the kernel's `dm-log-writes`,
    /// so that a test can replay what a crash at any moment may leave. An entry is there before its
    /// change is acknowledged; a change that can't be logged fails. A log that is there is
    /// continued. The log grows with each change, outlives this process but not the machine, and
    /// has all changes done by workers, which is slower. A read-only device logs nothing.
    pub fn write_log(mut self, path: impl Into<PathBuf>) -> Self {
        self.write_log = Some(path.into());
        self
    }

    /// Shares the rings, and the limit of workers, with other devices. Else the device has its own.
    pub fn rings(mut self, rings: &FileRings) -> Self {
        self.rings = Some(rings.clone());
        self
    }

    /// Hardware queues, at least 1; else one where the device has a ring of its own, and one for
    /// each CPU where it shares rings or has none. A device that shares no rings has one for each,
    /// with a thread that sleeps until something completes.
    pub fn queues(mut self, n: usize) -> Self {
        self.queues = Some(n.max(1));
        self
    }

    /// Requests in flight for each hardware queue, 1 to 4096.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.clamp(1, 4096);
        self
    }
}
