//! Devices with checkpoints: their record, and the exports that show them as they were.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewise::blockmq::{BlockDevice, BlockDeviceExt, Driver, IoError, Queue};
use corewise::device::ProbeError;
use corewise::drivers::{
    Checkpoint, CheckpointDriver, CheckpointEvent, CheckpointOptions, FileDriver, FileOptions,
};
use corewise::export::SharedDevice;
use corewise::nbd::Checkpoints;
use corewise::sync::Mutex;
use rustix::fs::{FlockOperation, flock};

use super::context::VolumeContext;
use super::volume::{DataOrigin, Volume};
use crate::control::checkpoints::{CheckpointAction, CheckpointReport};
use crate::manifest;

/// A device with checkpoints that is up.
pub(super) struct CheckpointPart {
    pub(super) driver: Arc<CheckpointDriver>,
    /// File with the old content of blocks. It is of no use after this server.
    copies: Option<PathBuf>,
    /// L: is the lock, held while an image is opened; guards the image that clients read, with the
    /// name of its checkpoint.
    image: Mutex<Option<(String, Arc<SharedDevice>)>>,
}

/// Opens the record and the driver over `below`.
pub(super) fn open(
    context: &VolumeContext,
    device: &str,
    below: &Volume,
    asked: &manifest::Checkpoint,
) -> Result<CheckpointPart, ProbeError> {
    let disk = below.device()?;
    let needed = CheckpointDriver::record_size(disk.geometry().size, asked.block);
    super::file::refuse_emptied(&asked.path.value, "a record").map_err(ProbeError::failed)?;
    let record = file(context, device, &asked.path.value, needed)?;
    let (report, name) = (context.report.clone(), device.to_owned());
    let mut options = CheckpointOptions::new().block(asked.block).observer(move |event| {
        if let CheckpointEvent::ImageEnded { checkpoint, why } = event {
            report.checkpoint(&name, "image_ended", checkpoint, Some(why));
        }
    });
    let mut copies = None;
    if let Some(room) = asked.copies {
        let path = asked.copies_path();
        remove_copies(&path).map_err(ProbeError::failed)?;
        let blocks = room.next_multiple_of(asked.block.into());
        let disk = file(context, device, &path, blocks + END_BLOCK as u64)?;
        let mut end = COPIES_END.to_vec();
        end.resize(END_BLOCK, 0);
        disk.write_at(blocks, end).map_err(|error| {
            ProbeError::failed(format!("cannot write to {}: {error}", path.display()))
        })?;
        options = options.copies(disk);
        copies = Some(path);
    }
    let opened = CheckpointDriver::open(disk, record, options, &context.workqueue);
    let (driver, faults) = opened.map_err(ProbeError::failed)?;
    let path = asked.path.value.display();
    if below.origin() == DataOrigin::Memory {
        forget(context, device, &driver, below.name()).map_err(ProbeError::failed)?;
    }
    if below.is_new() && !driver.names().is_empty() {
        return Err(ProbeError::failed(format!(
            "'{}' is new and empty, and {path} has checkpoints of former data. Put that data back, or \
             remove {path} and begin with a full backup",
            below.name()
        )));
    }
    for fault in faults {
        context.notes.add(format!("device '{device}': {path}: {fault}"));
    }
    Ok(CheckpointPart { driver: Arc::new(driver), copies, image: Mutex::default() })
}

/// Deletes the checkpoints of data in memory that a former server had.
fn forget(
    context: &VolumeContext,
    device: &str,
    driver: &CheckpointDriver,
    below: &str,
) -> Result<(), IoError> {
    let names = driver.names();
    names.iter().try_for_each(|name| driver.delete(name))?;
    if !names.is_empty() {
        let names = names.join(", ");
        context.notes.add(format!(
            "device '{device}': the data of '{below}' is in memory and ended with its server, so its \
             checkpoints were deleted: {names}"
        ));
    }
    Ok(())
}

/// The text at the end of a file of copies, by which the next server knows that it may remove it.
const COPIES_END: &[u8] =
    b"corewise: copies of changed blocks, of no use once their server has ended";
/// Size of the block that begins with that text.
const END_BLOCK: usize = 4096;

/// Removes the copies that a former server has left, if they are there.
///
/// # Errors
/// If another file has that place, or somebody uses it.
fn remove_copies(path: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot look at {}: {error}", path.display());
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?,
    };
    let refused = |what: &str| {
        let path = path.display();
        Err(format!(
            "{path} {what}, and copies of changed blocks would take its place. Move it away, or give the record another path"
        ))
    };
    if !found.is_file() {
        return refused("is there and is no file");
    }
    let file = File::open(path).map_err(failed)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return refused("is in use");
    }
    // A server that was killed while it made the file has left one without content.
    if !holds_copies(&file, found.len()) && found.blocks() != 0 {
        return refused("has other data");
    }
    std::fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))
}

/// Returns true if a file of this length has the end of a file of copies.
fn holds_copies(file: &File, len: u64) -> bool {
    let mut end = [0; COPIES_END.len()];
    let at = len.checked_sub(END_BLOCK as u64);
    at.is_some_and(|at| file.read_exact_at(&mut end, at).is_ok() && end == COPIES_END)
}

/// Opens a file of at least `size` bytes, which is created if it is missing.
fn file(
    context: &VolumeContext,
    device: &str,
    path: &Path,
    size: u64,
) -> Result<Arc<dyn BlockDevice>, ProbeError> {
    let failed = |why: String| ProbeError::failed(format!("cannot open {}: {why}", path.display()));
    super::file::refuse_what_is_no_disk(path).map_err(failed)?;
    let mut options = FileOptions::new(path).rings(&context.rings).name(device);
    if !path.exists() {
        options = options.size(size);
    }
    let driver = FileDriver::open(options, &context.workqueue)
        .map_err(|error| failed(super::file::why(path, &error)))?;
    if driver.info().geometry.size < size {
        driver.grow(Some(size)).map_err(|error| failed(error.to_string()))?;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let queue = Queue::builder(&context.machine, Arc::new(driver)).name(name);
    Ok(queue.build(&context.workqueue))
}

impl CheckpointPart {
    /// Does the action. Returns the checkpoint that was taken or deleted, or all of them. Requests
    /// of `queue`, over the driver, wait while a checkpoint is taken. May block.
    pub(super) fn act(
        &self,
        queue: &Arc<Queue>,
        action: &CheckpointAction,
    ) -> Result<Vec<CheckpointReport>, String> {
        let done = match action {
            CheckpointAction::Take(name) => {
                // The flush in the freeze then has little to do, and requests wait only for that.
                let flushed = queue.flush();
                let frozen = queue.freeze();
                let taken = flushed.and_then(|()| self.driver.take(name.as_deref(), &frozen));
                taken.map(|taken| vec![taken])
            }
            CheckpointAction::List => Ok(self.driver.list()),
            CheckpointAction::Delete(name) => {
                let found = self.driver.list().into_iter().filter(|one| one.name == *name);
                let found = found.collect();
                self.driver.delete(name).map(|()| found)
            }
        };
        let done = done.map_err(|error| error.words().map_or(error.to_string(), str::to_owned));
        Ok(done?.into_iter().map(|one| self.report(one)).collect())
    }

    fn report(&self, one: Checkpoint) -> CheckpointReport {
        let image = (!one.has_image).then(|| self.driver.image(&one.name));
        let why = image.and_then(|image| Some(image.err()?.words()?.to_owned()));
        CheckpointReport {
            unreadable: why,
            name: one.name,
            taken: one.taken.as_secs_f64(),
            changed: Some(one.changed),
            readable: one.has_image,
            uris: Vec::new(),
        }
    }

    /// Returns the newest checkpoint and the device as it was then, if that can be read.
    fn image(&self, context: &VolumeContext) -> Option<(String, Arc<SharedDevice>)> {
        let mut image = self.image.lock();
        let newest = self.driver.names().pop()?;
        if image.as_ref().is_none_or(|(of, _)| *of != newest) {
            let opened = Arc::new(self.driver.image(&newest).ok()?);
            let queue = Queue::builder(&context.machine, opened).name(newest.as_str());
            *image = Some((newest, SharedDevice::new(queue.build(&context.workqueue))));
        }
        image.clone()
    }

    /// Ends in order, once no request comes any more. May block.
    pub(super) fn close(&self) {
        drop(self.image.lock().take());
        self.driver.settle();
        if let Some(path) = &self.copies {
            // If it stays, the next start removes it. The driver still holds its lock.
            let is_ours = File::open(path).is_ok_and(|file| {
                file.metadata().is_ok_and(|found| holds_copies(&file, found.len()))
            });
            if is_ours {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Checkpoints for CheckpointPart {
    fn names(&self) -> Vec<String> {
        self.driver.names()
    }

    fn changed(&self, name: &str, offset: u64, len: u64, most: usize) -> Option<Vec<(u64, bool)>> {
        self.driver.changed(name, offset, len, most)
    }
}

impl Volume {
    /// Takes, lists or deletes checkpoints. Of a volume in an object store, they are its snapshots.
    /// May block.
    pub(crate) fn checkpoints(
        &self,
        action: &CheckpointAction,
    ) -> Result<Vec<CheckpointReport>, String> {
        let name = self.name();
        let made = self.made.get().ok_or_else(|| format!("'{name}' is missing"))?;
        match &made.checkpoints {
            Some(part) => part.act(&made.queue, action),
            None => Err(format!(
                "'{name}' has the driver '{}': only a device with the driver 'checkpoint' has \
                 checkpoints. Put one over '{name}', or take a snapshot of a volume in an object \
                 store",
                self.device.driver.name()
            )),
        }
    }

    /// Returns the device's checkpoints for clients, if it has any.
    pub(crate) fn checkpoint_contexts(&self) -> Option<Arc<dyn Checkpoints>> {
        let part = self.made.get()?.checkpoints.as_ref()?;
        Some(Arc::clone(part) as Arc<dyn Checkpoints>)
    }

    /// Returns the newest checkpoint and the device as it was then, if that can be read.
    pub(super) fn image(&self) -> Option<(String, Arc<SharedDevice>)> {
        self.made.get()?.checkpoints.as_ref()?.image(&self.context)
    }
}
