//! Opening and creating the file of a file device: checks, locking, and the way past the cache.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use corewise_blockmq::Geometry;
use corewise_sync::{context, thread, time};
use corewise_workqueue::Workqueue;
use rustix::fs::{FlockOperation, OFlags};

use super::error::{OpenError, OpenErrorKind};
use super::fault_reporter::FaultReporter;
use super::options::{FileOptions, LOCK_LOOK, LOCK_WAIT};
use super::qemu_locks::{self, Conflict};
use super::store::Store;
use super::write_log::WriteLog;
use super::{FileDriver, host_cache};
use crate::file_guard::FileGuard;

fn step(step: &'static str) -> impl FnOnce(io::Error) -> OpenErrorKind {
    move |source| OpenErrorKind::Io { step, source }
}

pub(super) fn open(options: FileOptions, wq: &Workqueue) -> Result<FileDriver, OpenError> {
    let mut created = false;
    let opened = try_open(&options, wq, &mut created);
    opened.map_err(|kind| {
        if created {
            // Nothing half-made is left behind. A failure to remove it isn't reported: the first
            // error matters.
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
        _ if size % block != 0 => Err(OpenErrorKind::BadSize { size, block_size }),
        _ => Ok(()),
    };
    if let Some(size) = options.size {
        check(size)?;
    }
    let (guard, new, for_qemu) = open_locked(options)?;
    let mut file = guard.file();
    // This is done only once it is locked: a file that another server has locked belongs to that
    // one, though this process created it.
    *created = new;
    let kind = file.metadata().map_err(step("reading its attributes"))?.file_type();
    check_type(kind)?;
    let found = file.seek(SeekFrom::End(0)).map_err(step("finding its size"))?;
    let began_empty = found == 0 && kind.is_file() && !options.read_only && options.size.is_some();
    let size = match options.size {
        Some(size) if began_empty => {
            file.set_len(size).map_err(step("setting its size"))?;
            make_durable(file, new.then_some(&options.path))?;
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
        can_fast_zero: true,
        ..Geometry::new(size)
    };
    let align = if options.direct {
        let align = host_cache::with_blocks(host_cache::found(file), block_size)?;
        // A file system that offers this may still refuse it.
        host_cache::go(file).map_err(step("reads and writes bypass the page cache"))?;
        Some(align)
    } else {
        None
    };
    // Past the cache there is nothing to prefetch into.
    let geometry = Geometry { can_prefetch: align.is_none(), ..geometry };
    let path = options.path.display().to_string();
    let reporter = FaultReporter::new(&path, options.name.clone(), options.observer.clone());
    let store = Store::new(guard, reporter, align).locked_for_qemu(for_qemu);
    let store = if kind.is_file() { store.of_length(size, options.on_loss) } else { store };
    let store = match options.write_log.as_ref().filter(|_| !options.read_only) {
        Some(path) => store.logged(WriteLog::open(path).map_err(step("opening its write log"))?),
        None => store,
    };
    let driver = FileDriver::new(store, geometry, *created, options, wq);
    let mut driver = driver.map_err(step("setting up io_uring"))?;
    driver.began_empty = began_empty;
    Ok(driver)
}

fn check_type(kind: FileType) -> Result<(), OpenErrorKind> {
    if kind.is_file() || kind.is_block_device() { Ok(()) } else { Err(OpenErrorKind::NotAFile) }
}

/// Opens the file; if it isn't there and a size is given, creates it. Returns whether it is new.
fn open_or_create(options: &FileOptions) -> Result<(File, bool), OpenErrorKind> {
    // This is checked before it is opened, and again after: opening a FIFO waits for its other end,
    // and opening some devices has effects.
    let mut how = OpenOptions::new();
    how.read(true).write(!options.read_only);
    if let Ok(found) = std::fs::metadata(&options.path) {
        check_type(found.file_type())?;
        if found.file_type().is_block_device() && !options.read_only {
            // A lock belongs to a node, and a disk may have several: in containers, say. A claim
            // belongs to the disk.
            how.custom_flags(OFlags::EXCL.bits() as i32);
        }
    }
    match how.open(&options.path) {
        Ok(file) => return Ok((file, false)),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
            return Err(OpenErrorKind::Claimed);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(step("opening it")(error)),
    }
    if options.size.is_none() || options.read_only {
        return Err(OpenErrorKind::NotFound);
    }
    match how.create_new(true).open(&options.path) {
        Ok(file) => Ok((file, true)),
        // Another process was faster, and has created it: the lock will tell its owner.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = how.create_new(false).open(&options.path);
            Ok((file.map_err(step("opening it"))?, false))
        }
        Err(error) => Err(step("creating it")(error)),
    }
}

/// Number of times that a file is opened again that was replaced before it was locked.
const REPLACED: usize = 3;

/// Opens the file, or creates it, and locks it. Returns whether it is new, and whether QEMU's locks
/// are taken.
fn open_locked(options: &FileOptions) -> Result<(FileGuard, bool, bool), OpenErrorKind> {
    let mut again = REPLACED;
    loop {
        let (file, new) = patiently(|| open_or_create(options))?;
        lock(&file, options)?;
        let for_qemu = lock_for_qemu(&file, options)?;
        match FileGuard::new(file, &options.path) {
            Err(error) if error.kind() == io::ErrorKind::StaleNetworkFileHandle && again > 0 => {
                again -= 1;
            }
            guard => {
                return Ok((guard.map_err(step("looking its path up"))?, new, for_qemu));
            }
        }
    }
}

fn lock(file: &File, options: &FileOptions) -> Result<(), OpenErrorKind> {
    let how = if options.read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    patiently(|| match rustix::fs::flock(file, how) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(OpenErrorKind::InUse),
        Err(error) => Err(step("locking it")(error.into())),
    })
}

/// Takes QEMU's locks. False: the file system has no such locks.
fn lock_for_qemu(file: &File, options: &FileOptions) -> Result<bool, OpenErrorKind> {
    let taken = patiently(|| {
        qemu_locks::lock(file, options.read_only).map_err(|conflict| match conflict {
            Conflict::Writer => OpenErrorKind::InUseByQemu { writes: true },
            Conflict::Alone => OpenErrorKind::InUseByQemu { writes: false },
            Conflict::Other => OpenErrorKind::InUse,
        })
    })?;
    if !taken {
        tracing::warn!(
            path = %options.path.display(),
            "the file system has no byte-range locks of open files: QEMU's programs don't notice that the file is in use"
        );
    }
    Ok(taken)
}

/// Tries to get a lock or a disk, for as long as a server that was killed may keep it.
fn patiently<T>(mut lock: impl FnMut() -> Result<T, OpenErrorKind>) -> Result<T, OpenErrorKind> {
    use OpenErrorKind::{Claimed, InUse, InUseByQemu};
    let start = time::now();
    loop {
        match lock() {
            Err(busy @ (Claimed | InUse | InUseByQemu { .. })) => {
                let waited = time::now().duration_since(start);
                if waited >= LOCK_WAIT {
                    return Err(busy);
                }
                let pause = LOCK_LOOK.min(LOCK_WAIT - waited);
                context::blocking_reported(|| thread::sleep(pause));
            }
            Err(OpenErrorKind::Io { source, .. })
                if source.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Waits for the disk. `path`: of a new file.
fn make_durable(file: &File, path: Option<&PathBuf>) -> Result<(), OpenErrorKind> {
    context::blocking_reported(|| {
        file.sync_all().map_err(step("making it durable"))?;
        let path = path.map_or(Ok(()), |path| sync_parent(path));
        path.map_err(step("cannot make its folder durable"))
    })
}

/// Makes the folder's entry of a new file durable: the file survives a crash only once its folder
/// does.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}
