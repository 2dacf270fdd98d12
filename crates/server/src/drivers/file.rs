//! File volumes, opened or created as the manifest says, with errors in the manifest's words.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise::blockmq::{Driver, Geometry};
use corewise::device::ProbeError;
use corewise::drivers::{
    FileDriver, FileEvent, FileOptions, IoPath, OpenError, OpenErrorKind, PathInUse,
};
use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise::sync::{Mutex, context};
use corewise::workqueue::{Work, Workqueue};

use super::context::VolumeContext;
use crate::cleanup::NewFile;
use crate::manifest::{self, Io};
use crate::report::Report;
use crate::units;

/// Opens the file of `device`, which is locked as long as the driver lives. If the device doesn't
/// come up, a file that was created is removed again. All files share their rings.
pub(super) fn open(
    device: &manifest::Device,
    file: &manifest::FileDriver,
    context: &VolumeContext,
) -> Result<Arc<FileDriver>, ProbeError> {
    let name = device.name.as_str();
    let path = &file.path.value;
    let failed = |why: String| ProbeError::failed(format!("cannot open {}: {why}", path.display()));
    refuse_what_is_no_disk(path).map_err(failed)?;
    let mut options = FileOptions::new(path)
        .block_size(file.block_size)
        .read_only(file.read_only)
        .direct(file.direct)
        .rings(&context.rings)
        .on_loss(file.on_lost)
        .name(name)
        .observer(LossReporter::new(name, context).observer())
        .io(match file.io {
            Io::Auto => IoPath::Auto,
            Io::Uring => IoPath::Uring,
            Io::Threads => IoPath::Threads,
        });
    let not_made = context.missing.why_not_made(name);
    if let (true, Some(size), None) = (file.create, &file.size, &not_made) {
        options = options.size(size.value);
    }
    if let Some(log) = &file.write_log {
        options = options.write_log(log);
    }
    let driver = FileDriver::open(options, &context.workqueue).map_err(|error| {
        match (not_made, error.kind()) {
            (Some(why), OpenErrorKind::NotFound | OpenErrorKind::BadSize { size: 0, .. }) => {
                failed(why)
            }
            _ => failed(why(path, &error)),
        }
    })?;
    if driver.created() {
        let (device, size) = (name.to_owned(), driver.info().geometry.size);
        let file = NewFile { device, path: path.clone(), size };
        context.cleanup.new_file(file).map_err(|error| failed(error.to_string()))?;
    }
    if let Some(asked) = &file.size {
        same_size(driver.info().geometry, asked.value).map_err(failed)?;
    }
    if file.io == Io::Auto && driver.io_path_in_use() == PathInUse::Threads {
        context.notes.add(format!(
            "device '{name}': the system refuses io_uring; the device uses pread and pwrite on \
             threads (io = \"threads\" silences this warning)"
        ));
    }
    if !driver.is_locked_for_qemu() {
        context.notes.add(format!(
            "device '{name}': the file system of {} has no byte-range locks, so QEMU's programs don't \
             notice that it is in use",
            path.display()
        ));
    }
    let driver = Arc::new(driver);
    context.files.add(&driver, &context.workqueue);
    Ok(driver)
}

/// A reporter that tells listeners of a lost file, and of the end of the loss.
struct LossReporter {
    device: String,
    report: Report,
    on: Workqueue,
    /// A: true once a loss was reported. AcqRel: the end of a loss follows its report.
    lost: AtomicBool,
}

impl LossReporter {
    fn new(device: &str, context: &VolumeContext) -> LossReporter {
        let (report, on) = (context.report.clone(), context.workqueue.clone());
        LossReporter { device: device.to_owned(), report, on, lost: AtomicBool::new(false) }
    }

    /// Returns the observer of a file. It is dropped with the driver: the file is then closed, so
    /// its loss no longer matters.
    fn observer(self) -> impl Fn(&FileEvent) + Send + Sync + 'static {
        move |happened| match happened {
            FileEvent::Lost { why } => {
                self.lost.store(true, Ordering::Release);
                self.tell("lost", Some(why.to_string()));
            }
            FileEvent::Moved { why } => self.tell("moved", Some(why.clone())),
            FileEvent::Back => self.tell("back", None),
            _ => {}
        }
    }

    /// Reports on a worker, since the caller must not wait for listeners.
    fn tell(&self, what: &'static str, why: Option<String>) {
        let (report, device) = (self.report.clone(), self.device.clone());
        drop(self.on.execute(move || report.file(&device, what, why.as_deref())));
    }
}

impl Drop for LossReporter {
    fn drop(&mut self) {
        if self.lost.load(Ordering::Acquire) {
            self.tell("closed", None);
        }
    }
}

/// Time between two checks of the files. A flush notices a truncated or unlinked file; only this
/// check notices a renamed or replaced one.
const LOOK: Duration = Duration::from_secs(1);

/// The files of all volumes. A work item per file checks it, since the lookup of a path may hang.
#[derive(Default)]
pub(crate) struct Files {
    /// L: is the lock; guards the files and the item that checks each.
    looks: Mutex<Vec<(Weak<FileDriver>, Work)>>,
}

impl Files {
    fn add(&self, file: &Arc<FileDriver>, on: &Workqueue) {
        let (weak, queue) = (Arc::downgrade(file), on.clone());
        let look = Work::new(move || {
            let Some(file) = weak.upgrade() else { return };
            // The log has the result.
            let _ = context::blocking("a look at a file", || file.look());
            drop(file);
            // An error means that the server ends.
            let _ = Work::current().map(|work| queue.queue_delayed(&work, LOOK));
        });
        let _ = on.queue_delayed(&look, LOOK);
        let mut looks = self.looks.lock();
        looks.retain(|(file, _)| file.strong_count() > 0);
        looks.push((Arc::downgrade(file), look));
    }
}

/// Refuses a path that is neither a file nor a disk. Opening a FIFO would wait for its other end;
/// opening a terminal or a tape has effects.
pub(crate) fn refuse_what_is_no_disk(path: &Path) -> Result<(), String> {
    match path.metadata() {
        Ok(meta) if meta.is_dir() => Err(format!("the path leads to a folder; {NAME_A_FILE}")),
        Ok(meta) if !meta.is_file() && !meta.file_type().is_block_device() => Err(not_a_file()),
        // Creating the link's target might be meant, but might fill another disk.
        Err(error) if error.kind() == ErrorKind::NotFound && path.is_symlink() => {
            let to = path.read_link().unwrap_or_default();
            Err(format!(
                "the path is a symbolic link to '{}', and no file is there; make that file, or name \
                 another path",
                to.display()
            ))
        }
        // A missing file may be created. Opening finds all other reasons.
        _ => Ok(()),
    }
}

/// The message for an empty file.
pub(crate) const EMPTY: &str =
    "the file is empty; create = true with a size makes a new volume in it";

const NAME_A_FILE: &str = "name a regular file or a block device";

fn not_a_file() -> String {
    format!("the path leads to a pipe, a socket or a character device; {NAME_A_FILE}")
}

fn same_size(geometry: Geometry, asked: u64) -> Result<(), String> {
    let found = geometry.size;
    if found == asked { Ok(()) } else { Err(other_size(found, asked)) }
}

/// Returns the message for a file whose size differs from the manifest's.
pub(crate) fn other_size(found: u64, asked: u64) -> String {
    format!(
        "the file has {found} bytes ({}), but the manifest says {asked} ({}). Leave out 'size' \
         and 'create' to take the file as it is",
        units::size(found),
        units::size(asked)
    )
}

/// Returns the message for a file whose size isn't a multiple of its block size.
pub(crate) fn bad_size(size: u64, block_size: u64) -> String {
    format!("its size {size} is not a multiple of the block size {block_size}; resize the file")
}

pub(super) fn why(path: &Path, error: &OpenError) -> String {
    match error.kind() {
        OpenErrorKind::NotFound if path.starts_with("/dev") => {
            "there is no such disk here; a unit of systemd with PrivateDevices=yes sees none \
             (docs/operating.md has its drop-in)"
                .to_string()
        }
        OpenErrorKind::NotFound => {
            "the file does not exist; create = true with a size creates it".to_string()
        }
        OpenErrorKind::NotAFile => not_a_file(),
        OpenErrorKind::InUse => {
            "the file is in use: another server, or another device of this one, has locked it; give \
             each device a file of its own, or stop that server"
                .to_string()
        }
        OpenErrorKind::InUseByQemu { writes: true } => {
            "the file is in use: a program of QEMU (a virtual machine, qemu-nbd, qemu-io, qemu-img) has \
             it open for writing; stop that program first"
                .to_string()
        }
        OpenErrorKind::InUseByQemu { writes: false } => {
            "the file is in use: a program of QEMU has it open and allows nobody to write; stop that \
             program first, or set read_only = true"
                .to_string()
        }
        OpenErrorKind::Claimed => {
            "the disk is in use: it or one of its partitions is mounted, or another program or a \
             driver of the kernel (LVM, md, multipath) has it; unmount it, or set read_only = true"
                .to_string()
        }
        OpenErrorKind::SizeDiffers { found, asked } => other_size(*found, *asked),
        OpenErrorKind::BadSize { size: 0, .. } => EMPTY.to_string(),
        OpenErrorKind::BadSize { size, block_size } => {
            bad_size(*size, u64::from(*block_size))
        }
        OpenErrorKind::NotDirect { needs: None, .. } => {
            "direct = true, but its file system doesn't report that it can bypass the page cache; \
             set direct = false"
                .to_string()
        }
        OpenErrorKind::NotDirect { needs: Some(needs), block_size } => format!(
            "direct = true needs a block_size of at least {} here, but it is {block_size}",
            needs.offset
        ),
        OpenErrorKind::Io { step, source } => {
            use std::io::ErrorKind::{NotFound, PermissionDenied};
            match source.kind() {
                PermissionDenied => format!(
                    "{step}: {source}; run as a user that may read and write it, or set read_only = \
                     true if it may be read"
                ),
                NotFound => "its folder does not exist; make it, or name another path".to_string(),
                _ => format!("{step}: {source}"),
            }
        }
        // New kinds may be added. Their text includes the path.
        _ => error.to_string(),
    }
}
/// Refuses a file that is there and has no bytes: something has emptied it.
pub(super) fn refuse_emptied(path: &Path, what: &str) -> Result<(), String> {
    match path.metadata() {
        Ok(found) if found.is_file() && found.len() == 0 => {
            let path = path.display();
            Err(format!(
                "{path} is empty, so it isn't {what} any more. Restore it from a backup, or remove it to begin anew"
            ))
        }
        _ => Ok(()),
    }
}
