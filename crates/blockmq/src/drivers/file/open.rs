//! Opening and creating the file of a file device: options, checks, locking, and errors that say
//! what to do.

use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use corewise_workqueue::Workqueue;
use rustix::fs::FlockOperation;

use super::FileDriver;
use crate::device::Geometry;
use crate::policy::DEFAULT_DEPTH;

/// Which way a file device shall do its I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug)]
#[must_use]
pub struct FileOptions {
    pub(super) path: PathBuf,
    pub(super) size: Option<u64>,
    pub(super) block_size: u32,
    pub(super) read_only: bool,
    pub(super) io: IoPath,
    pub(super) queues: usize,
    pub(super) depth: u32,
    pub(super) lock_wait: Duration,
}

/// How long an open waits for a lock that somebody else has, unless told otherwise.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// How often it looks meanwhile: there is no way to wait for a `flock` with a deadline.
const LOCK_LOOK: Duration = Duration::from_millis(5);

impl FileOptions {
    /// An existing file (or block device), as large as it is, with blocks of 512 bytes, one
    /// hardware queue, and [`IoPath::Auto`].
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            size: None,
            block_size: 512,
            read_only: false,
            io: IoPath::Auto,
            queues: 1,
            depth: DEFAULT_DEPTH,
            lock_wait: LOCK_WAIT,
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

    /// Which way to do I/O.
    pub fn io(mut self, io: IoPath) -> Self {
        self.io = io;
        self
    }

    /// Rings, that is hardware queues, where io_uring is used; each has a thread that sleeps until
    /// something completes.
    pub fn queues(mut self, n: usize) -> Self {
        self.queues = n.max(1);
        self
    }

    /// How long to wait for the file's lock while somebody else has it; 2 seconds unless set.
    ///
    /// A server that was killed may keep its lock for a moment: until what it had in flight in the
    /// kernel has ended. That is as it should be, for those writes must not land behind the next
    /// server's back; so the next one waits for them.
    pub fn lock_wait(mut self, at_most: Duration) -> Self {
        self.lock_wait = at_most;
        self
    }

    /// Requests in flight for each hardware queue, 1 to 4096.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.clamp(1, 4096);
        self
    }
}

/// Why a file device can't be opened: the path, and the [`OpenErrorKind`].
#[derive(Debug)]
pub struct OpenError {
    path: PathBuf,
    kind: OpenErrorKind,
}

/// What was wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// The file doesn't exist, and no size was given to create it with (or it is read-only).
    NotFound,
    /// It is neither a regular file nor a block device.
    NotAFile,
    /// Somebody else has it locked, another server or another device of this one, and kept it for
    /// longer than [`FileOptions::lock_wait`].
    InUse,
    /// The file has another size than it should; nothing was changed.
    SizeDiffers {
        /// Its size in bytes.
        found: u64,
        /// The size that was asked for.
        asked: u64,
    },
    /// The size, asked for or found, is zero or no multiple of the block size.
    BadSize {
        /// The size in bytes.
        size: u64,
        /// The block size in bytes.
        block_size: u32,
    },
    /// The block size is no power of two, or less than 512.
    BadBlockSize(u32),
    /// This step failed.
    Io {
        /// What was being done.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// The path that was to be opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was wrong.
    pub fn kind(&self) -> &OpenErrorKind {
        &self.kind
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.kind {
            OpenErrorKind::NotFound => {
                f.write_str("there is no such file; give a size to have it created")
            }
            OpenErrorKind::NotAFile => f.write_str("neither a regular file nor a block device"),
            OpenErrorKind::InUse => {
                f.write_str("in use: another process, or another device of this one, has it locked")
            }
            OpenErrorKind::SizeDiffers { found, asked } => write!(
                f,
                "it has {found} bytes, not {asked}; leave the size out to take it as it is, or \
                 change the file's size yourself"
            ),
            OpenErrorKind::BadSize { size, block_size } => write!(
                f,
                "a size of {size} bytes: it has to be a multiple of the block size, {block_size}, \
                 and not zero"
            ),
            OpenErrorKind::BadBlockSize(size) => {
                write!(f, "a block size of {size} bytes: it has to be a power of two, at least 512")
            }
            OpenErrorKind::Io { step, source } => write!(f, "{step}: {source}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            OpenErrorKind::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn step(step: &'static str) -> impl FnOnce(io::Error) -> OpenErrorKind {
    move |source| OpenErrorKind::Io { step, source }
}

pub(super) fn open(options: FileOptions, wq: &Workqueue) -> Result<FileDriver, OpenError> {
    let mut created = false;
    let opened = try_open(&options, wq, &mut created);
    opened.map_err(|kind| {
        if created {
            // Nothing half-made is left behind. A failure to remove it is not the news here.
            let _ = std::fs::remove_file(&options.path);
        }
        OpenError { path: options.path, kind }
    })
}

fn try_open(
    options: &FileOptions,
    wq: &Workqueue,
    created: &mut bool,
) -> Result<FileDriver, OpenErrorKind> {
    let block_size = options.block_size;
    if block_size < 512 || !block_size.is_power_of_two() {
        return Err(OpenErrorKind::BadBlockSize(block_size));
    }
    let block = u64::from(block_size);
    let check = |size: u64| match size {
        0 => Err(OpenErrorKind::BadSize { size, block_size }),
        _ if !size.is_multiple_of(block) => Err(OpenErrorKind::BadSize { size, block_size }),
        _ => Ok(()),
    };
    if let Some(size) = options.size {
        check(size)?;
    }
    let (mut file, new) = open_or_create(options)?;
    lock(&file, options)?;
    // Not before it is locked: a file that somebody else has locked is his, whoever created it.
    *created = new;
    let kind = file.metadata().map_err(step("reading its attributes"))?.file_type();
    check_type(kind)?;
    let found = file.seek(SeekFrom::End(0)).map_err(step("finding its size"))?;
    let size = match options.size {
        Some(size) if found == 0 && kind.is_file() && !options.read_only => {
            file.set_len(size).map_err(step("setting its size"))?;
            file.sync_all().map_err(step("making it durable"))?;
            if new {
                sync_parent(&options.path).map_err(step("making its folder durable"))?;
            }
            size
        }
        Some(asked) if asked != found => return Err(OpenErrorKind::SizeDiffers { found, asked }),
        _ => found,
    };
    check(size)?;
    let geometry = Geometry {
        block_size,
        preferred: block_size.max(4096),
        read_only: options.read_only,
        ..Geometry::new(size)
    };
    FileDriver::new(file, geometry, *created, options, wq).map_err(step("setting up io_uring"))
}

fn check_type(kind: FileType) -> Result<(), OpenErrorKind> {
    if kind.is_file() || kind.is_block_device() { Ok(()) } else { Err(OpenErrorKind::NotAFile) }
}

/// Opens the file; where it isn't there and a size says what it shall be, creates it. True: new.
fn open_or_create(options: &FileOptions) -> Result<(File, bool), OpenErrorKind> {
    // Before it is opened, and again after: opening a FIFO waits for somebody at its other end, and
    // opening some devices does things.
    if let Ok(found) = std::fs::metadata(&options.path) {
        check_type(found.file_type())?;
    }
    let mut how = OpenOptions::new();
    how.read(true).write(!options.read_only);
    match how.open(&options.path) {
        Ok(file) => return Ok((file, false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(step("opening it")(error)),
    }
    if options.size.is_none() || options.read_only {
        return Err(OpenErrorKind::NotFound);
    }
    match how.create_new(true).open(&options.path) {
        Ok(file) => Ok((file, true)),
        // Somebody was faster, and has it now: then it is his, and the lock will tell.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = how.create_new(false).open(&options.path);
            Ok((file.map_err(step("opening it"))?, false))
        }
        Err(error) => Err(step("creating it")(error)),
    }
}

fn lock(file: &File, options: &FileOptions) -> Result<(), OpenErrorKind> {
    let how = if options.read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    let start = Instant::now();
    loop {
        match rustix::fs::flock(file, how) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let waited = start.elapsed();
                if waited >= options.lock_wait {
                    return Err(OpenErrorKind::InUse);
                }
                std::thread::sleep(LOCK_LOOK.min(options.lock_wait - waited));
            }
            Err(error) => return Err(step("locking it")(error.into())),
        }
    }
}

/// A new file survives a crash only once its folder does.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}
