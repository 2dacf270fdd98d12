//! The volumes that exports and stacked volumes use. A missing volume has an object, too, so that
//! shutdown keeps its order and the volume can be made later.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use corewise::blockmq::{BlockDevice, BlockDeviceExt, Driver, Queue};
use corewise::device::{self, Bound, ProbeContext, ProbeError, ShutdownError};
use corewise::drivers::{FileDriver, Mirror, Overlay, Stripe, holds_data};
use corewise::export::SharedDevice;
use corewise::nbd::{AllocationDepth, Remote};
use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise::sync::{Mutex, context};

use super::checkpoint::{self, CheckpointPart};
use super::context::VolumeContext;
use super::object::{self, ObjectDriver};
use super::overlay::Layers;
use super::plain::{self, Claims};
use super::{crypt, file, mirror, overlay};
use crate::control::disks::DiskKind;
use crate::control::mirrors::{self, CheckSchedule};
use crate::control::stores::{OverlayChange, Snapshot, SnapshotAction};
use crate::manifest;
use crate::new_parts;

/// L: is the lock, held for a moment; guards the volumes below, in order. Legs of a mirror change
/// while it serves.
pub(super) type Parts = Arc<Mutex<Vec<Arc<Volume>>>>;

/// A device of the manifest.
pub(crate) struct Volume {
    pub(super) context: VolumeContext,
    pub(super) device: manifest::Device,
    /// Volumes below.
    parts: Parts,
    /// Queue and driver; empty while the volume is missing.
    pub(super) made: OnceLock<OpenVolume>,
    /// Device with the state that clients of all its front ends share.
    shared: OnceLock<Arc<SharedDevice>>,
    /// L: is the lock, held while the volume is made, at the start or later.
    making: Mutex<()>,
    /// L: is the lock; guards the reason why the volume is missing.
    pub(super) why: Mutex<String>,
    pub(super) claims: Claims,
    /// A: true once the server ends. Release and Acquire: set before the volume is shut down.
    server_ends: AtomicBool,
    /// Times at which a mirror is checked.
    schedule: Arc<CheckSchedule>,
}

/// The queue and the driver of a volume that is up.
pub(super) struct OpenVolume {
    pub(super) queue: Arc<Queue>,
    mirror: Option<Arc<Mirror>>,
    /// File of a file device, or of an overlay.
    file: Option<Arc<FileDriver>>,
    overlay: Option<Arc<Overlay>>,
    object: Option<Arc<ObjectDriver>>,
    remote: Option<Arc<Remote>>,
    /// First byte of the data on the part of an encrypted volume.
    data_start: Option<u64>,
    pub(super) checkpoints: Option<Arc<CheckpointPart>>,
    /// Location at which durable data was created, if nothing was there.
    new_at: Option<String>,
    origin: DataOrigin,
}

/// The origin of a volume's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataOrigin {
    /// Data that this start created.
    New,
    /// The data existed before, or may have.
    Before,
    /// The data is in memory and ends with the server.
    Memory,
}

impl DataOrigin {
    /// Returns the origin of a volume over those.
    fn over(parts: &[Arc<Volume>]) -> DataOrigin {
        let all = |of: DataOrigin| parts.iter().all(|part| part.origin() == of);
        match (all(DataOrigin::New), all(DataOrigin::Memory)) {
            (_, true) => DataOrigin::Memory,
            (true, _) => DataOrigin::New,
            _ => DataOrigin::Before,
        }
    }
}

impl Volume {
    /// Creates a volume that isn't made yet.
    pub(super) fn new(
        context: VolumeContext,
        device: manifest::Device,
        parts: Vec<Arc<Volume>>,
    ) -> Volume {
        let schedule = CheckSchedule::default();
        if let manifest::Driver::Mirror(mirror) = &device.driver {
            schedule.set(mirror.check_every);
        }
        Volume {
            schedule: Arc::new(schedule),
            context,
            device,
            parts: Arc::new(Mutex::new(parts)),
            made: OnceLock::new(),
            shared: OnceLock::new(),
            making: Mutex::new(()),
            why: Mutex::default(),
            claims: Claims::default(),
            server_ends: AtomicBool::new(false),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.device.name
    }

    /// Returns the device, or an error while it is missing.
    pub(crate) fn device(&self) -> Result<Arc<dyn BlockDevice>, ProbeError> {
        match self.made.get() {
            Some(made) => Ok(made.queue.clone()),
            None => {
                let (name, why) = (self.name(), self.why.lock().clone());
                Err(ProbeError::failed(format!("'{name}' is missing: {why}")))
            }
        }
    }

    /// Returns the device with the state that its clients share, or an error while it is missing.
    pub(crate) fn shared(&self) -> Result<Arc<SharedDevice>, ProbeError> {
        let device = self.device()?;
        Ok(Arc::clone(self.shared.get_or_init(|| SharedDevice::new(device))))
    }

    /// Returns a text that says where the data is, the same in each process. `None` if the data
    /// ends with this one.
    pub(crate) fn identity(&self) -> Option<String> {
        use manifest::Driver;
        let parts = || {
            let parts: Option<Vec<_>> =
                self.parts.lock().iter().map(|one| one.identity()).collect();
            parts.map(|parts| parts.join("\n"))
        };
        Some(match &self.device.driver {
            Driver::Memory(_) | Driver::Null(_) => return None,
            Driver::Object(_) if self.origin() == DataOrigin::Memory => return None,
            // Another device may have the same data under another name.
            Driver::File(file) => format!("file {}", identity_of(&file.path.value)),
            // The file names the base.
            Driver::Overlay(overlay) => format!("overlay {}", identity_of(&overlay.path.value)),
            Driver::Remote(remote) => format!("nbd {}", remote.uri.value),
            Driver::Object(object) => format!("object {}", object.location.value),
            // Its legs change while it serves, and each has a record that names its mirror.
            // Without a record, the first leg has everything, and stays.
            Driver::Mirror(_) => {
                parts()?;
                let first = || self.parts.lock().first().and_then(|leg| leg.identity());
                let mirror = self.made.get().and_then(|made| made.mirror.as_ref()?.id());
                match mirror {
                    Some(id) => format!("mirror {:032x}", u128::from_be_bytes(id)),
                    None => format!("mirror over\n{}", first()?),
                }
            }
            other => format!("{} over\n{}", other.name(), parts()?),
        })
    }

    /// Returns true if this start made the volume, new and empty.
    pub(crate) fn is_new(&self) -> bool {
        self.origin() == DataOrigin::New
    }

    /// Returns true if changes that were answered may be lost when this process is killed.
    pub(crate) fn may_lose(&self) -> bool {
        use manifest::Driver::{Object, Overlay};
        matches!(self.device.driver, Object(_) | Overlay(_))
            || self.parts.lock().iter().any(|part| part.may_lose())
    }

    /// Returns the origin of the data. A missing volume counts as one that existed before.
    pub(super) fn origin(&self) -> DataOrigin {
        self.made.get().map_or(DataOrigin::Before, |made| made.origin)
    }

    /// Returns the reason why the volume can't grow, as far as that is known without trying.
    pub(crate) fn may_grow(&self, size: Option<u64>) -> Result<(), String> {
        use manifest::Driver;
        let has = self.made.get().ok_or("the volume is missing")?.queue.geometry();
        let block = u64::from(has.block_size);
        match (&self.device.driver, size) {
            (Driver::Object(_), None) => {
                Err("an object store reports no size: give the new size".to_string())
            }
            (Driver::Overlay(_), None) => {
                Err("an overlay has no size of its own but this: give the new size".to_string())
            }
            (Driver::File(_) | Driver::Remote(_), None) => Ok(()),
            (
                Driver::File(_) | Driver::Object(_) | Driver::Remote(_) | Driver::Overlay(_),
                Some(size),
            ) => {
                if size < has.size {
                    let has = has.size;
                    Err(format!("the volume has {has} bytes and can't shrink to {size}"))
                } else if size % block != 0 {
                    Err(format!("the new size {size} is not a multiple of the block size {block}"))
                } else {
                    Ok(())
                }
            }
            (Driver::Crypt(_), size) => {
                let parts = self.parts.lock().clone();
                let part = only_part(&parts).map_err(|error| error.to_string())?;
                part.may_grow(size.map(|size| self.size_below(size)))
            }
            (other, _) => Err(format!("a '{}' device cannot grow", other.name())),
        }
    }

    /// Returns the size of its part with which an encrypted volume has this size.
    fn size_below(&self, size: u64) -> u64 {
        let start = self.made.get().and_then(|made| made.data_start).unwrap_or_default();
        size.saturating_add(start)
    }

    /// Grows the volume, an encrypted one together with its part, and returns its new size. No
    /// volume may be above it. May block.
    pub(crate) fn grow(&self, size: Option<u64>) -> Result<u64, String> {
        let made = self.made.get().ok_or("the volume is missing")?;
        if made.data_start.is_some() {
            let part = self.parts.lock().first().cloned().ok_or("the volume has no parts")?;
            part.grow(size.map(|size| self.size_below(size)))?;
        }
        made.queue.grow(size).map_err(|error| error.to_string())
    }

    /// Checks that a volume in an object store opens as a clone of this snapshot. Returns the
    /// reason if not.
    pub(crate) fn is_clone_of(&self, parent: &str, snapshot: &str) -> Result<(), String> {
        match self.made.get().and_then(|made| made.object.as_deref()) {
            Some(volume) => object::is_clone_of(volume, parent, snapshot),
            None => Ok(()),
        }
    }

    /// Takes, lists or deletes snapshots of a volume in an object store. May block.
    pub(crate) fn snapshots(&self, action: &SnapshotAction) -> Result<Vec<Snapshot>, String> {
        let name = self.name();
        let made = self.made.get().ok_or_else(|| format!("'{name}' is missing"))?;
        match made.object.as_deref() {
            Some(volume) => object::snapshots(volume, action),
            None => {
                let kind = self.device.driver.name();
                let why = format!(
                    "'{name}' has the driver '{kind}': only a volume in an object store (driver \
                     'object') has snapshots"
                );
                Err(match &self.objects()[..] {
                    [] => why,
                    parts => format!("{why}. Name a part of it: {}", parts.join(", ")),
                })
            }
        }
    }

    /// Returns the names of the volumes in object stores below this one.
    fn objects(&self) -> Vec<String> {
        let parts = self.parts.lock().clone();
        let of_part = |part: &Arc<Volume>| match part.device.driver {
            manifest::Driver::Object(_) => vec![part.name().to_string()],
            _ => part.objects(),
        };
        parts.iter().flat_map(of_part).collect()
    }

    /// Changes this overlay as a whole. Its requests wait until that is done. May block.
    pub(crate) fn change_overlay(&self, change: OverlayChange) -> Result<(), String> {
        let made = self.made.get().ok_or("the volume is missing")?;
        let overlay = made.overlay.as_ref().ok_or("the volume is not an overlay")?;
        let changed = match change {
            OverlayChange::Flatten => overlay.flatten(),
            OverlayChange::Reset | OverlayChange::Commit => {
                let _frozen = made.queue.freeze();
                match change {
                    OverlayChange::Commit => overlay.commit(),
                    _ => overlay.reset(),
                }
            }
        };
        changed.map_err(|error| error.to_string())
    }

    /// Returns the overlay, if the volume is one that is up.
    fn overlay(&self) -> Option<&Arc<Overlay>> {
        self.made.get()?.overlay.as_ref()
    }

    /// Returns the layers of this overlay for clients; `None` if it isn't one that is up.
    pub(super) fn overlay_layers(&self) -> Option<Arc<dyn AllocationDepth>> {
        Some(Arc::new(Layers(Arc::clone(self.overlay()?))))
    }

    /// Returns the bytes of a block of this overlay; `None` if it isn't one that is up.
    pub(crate) fn overlay_block_size(&self) -> Option<u32> {
        Some(self.overlay()?.block_size())
    }

    /// Replaces a leg of this mirror by another volume, which starts out and is resynced. If
    /// nothing could be written to it, returns the reason why it stays out. May block.
    pub(crate) fn replace_leg(
        &self,
        leg: &str,
        with: &Arc<Volume>,
    ) -> Result<Option<String>, String> {
        let mirror = self.mirror()?;
        let n = self.number(mirror, leg)?;
        let device = with.device().map_err(|error| error.to_string())?;
        drop(mirror.replace(n, device).map_err(|error| error.to_string())?);
        for part in self.parts.lock().iter_mut().filter(|part| part.name() == leg) {
            *part = Arc::clone(with);
        }
        Ok(mirror.why_out(n))
    }

    /// Adds another volume as a leg of this mirror, to be resynced. Returns the reason if it stays
    /// out. May block.
    pub(crate) fn add_leg(&self, with: &Arc<Volume>) -> Result<Option<String>, String> {
        let mirror = self.mirror()?;
        let device = with.device().map_err(|error| error.to_string())?;
        let n = mirror.add(device).map_err(|error| error.to_string())?;
        self.parts.lock().push(Arc::clone(with));
        Ok(mirror.why_out(n))
    }

    /// Removes a leg of this mirror. May block.
    pub(crate) fn remove_leg(&self, leg: &str) -> Result<(), String> {
        let mirror = self.mirror()?;
        let n = self.number(mirror, leg)?;
        drop(mirror.remove(n).map_err(|error| error.to_string())?);
        self.parts.lock().retain(|part| part.name() != leg);
        Ok(())
    }

    /// Takes the keys that a device follows while clients go on.
    pub(crate) fn follow(&self, driver: &manifest::Driver) {
        match (driver, self.overlay()) {
            (manifest::Driver::Mirror(mirror), _) => self.schedule.set(mirror.check_every),
            (manifest::Driver::Overlay(asked), Some(overlay)) => {
                overlay.set_fetch(asked.fetch, asked.fetch_rate);
            }
            _ => {}
        }
    }

    /// Returns true for an overlay that has every block.
    pub(crate) fn needs_no_base(&self) -> bool {
        self.overlay().is_some_and(|overlay| !overlay.status().has_base)
    }

    /// Drops the base of this overlay, which has every block.
    pub(crate) fn drop_base(&self) {
        self.parts.lock().clear();
    }

    /// Returns the names of this mirror's legs, in the order that the next start needs.
    pub(crate) fn legs(&self) -> Result<Vec<String>, String> {
        let names = mirrors::names(self.mirror()?);
        Ok(names.into_iter().filter(|name| !name.is_empty()).collect())
    }

    /// Returns true for a mirror that keeps a record on its legs.
    pub(crate) fn has_record(&self) -> bool {
        self.mirror().is_ok_and(|mirror| mirror.has_record())
    }

    /// Returns true for a mirror that is up.
    pub(crate) fn is_mirror(&self) -> bool {
        self.mirror().is_ok()
    }

    fn mirror(&self) -> Result<&Mirror, String> {
        let mirror = self.made.get().and_then(|made| made.mirror.as_deref());
        mirror.ok_or_else(|| format!("'{}' is not a mirror that is up", self.name()))
    }

    fn number(&self, mirror: &Mirror, leg: &str) -> Result<usize, String> {
        let n = mirrors::names(mirror).iter().position(|name| name == leg);
        n.ok_or_else(|| format!("'{leg}' is not a leg of '{}'", self.name()))
    }

    /// Marks the end of the server: the next one has to find the served data.
    pub(crate) fn server_ends(&self) {
        self.server_ends.store(true, Ordering::Release);
        self.ends_soon();
    }

    /// Announces the shutdown, so that a silent remote server isn't waited for again and again.
    fn ends_soon(&self) {
        if let Some(remote) = self.made.get().and_then(|made| made.remote.as_ref()) {
            remote.ends_soon();
        }
    }

    /// Returns the device. If it is missing, tries to make it, and returns the reason if that
    /// fails. May block.
    pub(super) fn appear(&self) -> Result<Arc<dyn BlockDevice>, String> {
        let _alone = self.making.lock();
        if self.made.get().is_none() {
            for part in self.parts.lock().clone() {
                // The driver decides whether it can do without the part.
                let _ = part.appear();
            }
            match self.make() {
                Ok(made) => self.came(made),
                Err(error) => *self.why.lock() = error.to_string(),
            }
        }
        self.device().map_err(|_| self.why.lock().clone())
    }

    /// Registers the volume as up.
    pub(super) fn came(&self, made: OpenVolume) {
        self.context.disks.add(&made.queue, self.kind(&made));
        let report = &self.context.report;
        report.made(self.context.cleanup.came_up(self.name()));
        if let Some(at) = &made.new_at {
            let (driver, size) = (self.device.driver.name(), made.queue.geometry().size);
            report.made_at(self.name(), driver, at, size);
        }
        // An error would mean that it was made before, and only the caller makes it.
        let _ = self.made.set(made);
    }

    /// Returns the kind of disk that is reported beside its queue.
    fn kind(&self, made: &OpenVolume) -> DiskKind {
        if let Some(overlay) = &made.overlay {
            let base = self.parts.lock().first().map(|base| base.name().to_owned());
            return DiskKind::Overlay(Arc::downgrade(overlay), base);
        }
        match (&made.mirror, &made.remote, &made.object) {
            (Some(mirror), ..) => {
                DiskKind::Mirror(Arc::downgrade(mirror), Arc::clone(&self.schedule))
            }
            (_, Some(remote), _) => DiskKind::Remote(Arc::downgrade(remote)),
            (.., Some(object)) => {
                let object = Arc::downgrade(object);
                DiskKind::Store(Arc::new(move || {
                    object.upgrade().map(|object| object::cost(&object))
                }))
            }
            _ => {
                let parts = self.parts.lock();
                let over = parts.iter().map(|part| part.name().to_owned()).collect();
                match &made.checkpoints {
                    Some(part) => DiskKind::Checkpoint(Arc::downgrade(&part.driver), over),
                    None => DiskKind::Over(over),
                }
            }
        }
    }

    /// Opens or creates the volume. May block.
    pub(super) fn make(&self) -> Result<OpenVolume, ProbeError> {
        let (context, parts) = (&self.context, &self.parts.lock().clone());
        let (mut mirror, mut object, mut remote, mut new_at) = (None, None, None, None);
        let (mut in_file, mut data_start, mut above, mut checkpoints) = (None, None, None, None);
        let mut origin = DataOrigin::over(parts);
        let driver: Arc<dyn Driver> = match &self.device.driver {
            manifest::Driver::Memory(asked) => {
                origin = DataOrigin::Memory;
                plain::memory(asked.size, asked.block_size)?
            }
            manifest::Driver::Null(asked) => {
                origin = DataOrigin::Memory;
                plain::null(asked.size, asked.block_size)
            }
            manifest::Driver::File(file) => {
                let opened = file::open(&self.device, file, context)?;
                origin = if opened.began_empty() { DataOrigin::New } else { DataOrigin::Before };
                // A file that was created goes again if the bring-up fails, so it is reported
                // later.
                let was_empty = opened.began_empty() && !opened.created();
                new_at = was_empty.then(|| file.path.value.display().to_string());
                in_file = Some(Arc::clone(&opened));
                opened
            }
            manifest::Driver::Remote(asked) => {
                let opened = plain::remote(context, self.name(), asked)?;
                origin = DataOrigin::Before;
                remote = Some(Arc::clone(&opened));
                opened
            }
            manifest::Driver::Object(asked) => {
                let opened = object::open(context, self.name(), asked)?;
                new_at = object::created(&opened).then(|| asked.location.value.clone());
                // A clone has its parent's data.
                let is_new = new_at.is_some() && asked.clone_of.is_none();
                origin = match is_new {
                    _ if self.device.driver.is_in_memory() => DataOrigin::Memory,
                    true => DataOrigin::New,
                    false => DataOrigin::Before,
                };
                object = Some(Arc::clone(&opened));
                opened
            }
            manifest::Driver::Stripe(asked) => {
                parts_are_of_one_time(self.name(), parts)?;
                let parts = parts.iter().map(|part| part.device()).collect::<Result<_, _>>()?;
                Arc::new(Stripe::new(parts, asked.chunk).map_err(ProbeError::failed)?)
            }
            manifest::Driver::Mirror(asked) => {
                let made = mirror::open(context, self.name(), asked, &self.parts)?;
                mirror = Some(Arc::clone(&made));
                made
            }
            manifest::Driver::Overlay(asked) => {
                let (made, file) = overlay::open(&self.device, asked, parts.first(), context)?;
                origin = DataOrigin::Before;
                (in_file, above) = (Some(file), Some(Arc::clone(&made)));
                made
            }
            manifest::Driver::Partition(asked) => {
                plain::partition(context, self.name(), only_part(parts)?, &asked.partition.value)?
            }
            manifest::Driver::Crypt(asked) => {
                let part = only_part(parts)?;
                let opened = crypt::open(context, self.name(), part, asked)?;
                data_start = Some(opened.data_start());
                if opened.created() {
                    new_at = Some(part.name().to_owned());
                    origin = DataOrigin::New;
                }
                Arc::new(opened)
            }
            manifest::Driver::Checkpoint(asked) => {
                let opened = checkpoint::open(context, self.name(), only_part(parts)?, asked)?;
                let driver = Arc::clone(&opened.driver);
                checkpoints = Some(Arc::new(opened));
                driver
            }
            manifest::Driver::Delay(asked) => {
                plain::delay(context, only_part(parts)?, asked.delays())?
            }
            manifest::Driver::Error(asked) => plain::error(only_part(parts)?, asked)?,
        };
        Ok(OpenVolume {
            queue: context.queue(&self.device, driver),
            mirror,
            file: in_file,
            overlay: above,
            object,
            remote,
            data_start,
            checkpoints,
            new_at,
            origin,
        })
    }
}

/// Returns the identity of a file, the same for each of its paths. Another file at that path has
/// another one, even if it got the number of an inode that is gone.
fn identity_of(path: &Path) -> String {
    let Ok(meta) = std::fs::metadata(path) else { return path.display().to_string() };
    let created = meta.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    format!("{}:{} of {}", meta.dev(), meta.ino(), created.unwrap_or_default().as_nanos())
}

/// Refuses a new part beside one that holds data: it lacks the volume's data there.
fn parts_are_of_one_time(volume: &str, parts: &[Arc<Volume>]) -> Result<(), ProbeError> {
    let of = |origin: DataOrigin| parts.iter().filter(move |part| part.origin() == origin);
    for new in of(DataOrigin::New) {
        // A part that an earlier change of the running server created may have data by now.
        if holds_data(&*new.device()?) == Some(true) {
            continue;
        }
        for old in of(DataOrigin::Before) {
            if holds_data(&*old.device()?) != Some(false) {
                return Err(ProbeError::failed(new_parts::new_part_refusal(
                    volume,
                    new.name(),
                    old.name(),
                )));
            }
        }
    }
    Ok(())
}

/// Returns the part of a driver that has one.
fn only_part(parts: &[Arc<Volume>]) -> Result<&Volume, ProbeError> {
    parts.first().map(|part| &**part).ok_or_else(|| ProbeError::failed("the volume has no parts"))
}

/// Checks that the next server finds the file by its path. All flushed data is in the file,
/// wherever it is.
fn is_in_its_place(file: &FileDriver) -> Result<(), ShutdownError> {
    context::blocking("a look at a file", || file.look()).map_err(|error| {
        let todo = file.displaced().map_or("", |displaced| displaced.todo);
        let why = file.moved().unwrap_or_else(|| error.to_string());
        ShutdownError::new(format!(
            "all data is written, but the next start won't find it: {why}. {todo}"
        ))
    })
}

impl Bound for Volume {
    /// Ends requests still on their way (of clients whose connections were closed), then flushes to
    /// where the data is kept. A stripe isn't flushed: that would flush its parts, whose shutdown
    /// comes next.
    fn shutdown(&self) -> Result<(), ShutdownError> {
        let Some(made) = self.made.get() else { return Ok(()) };
        self.ends_soon();
        made.queue.drain();
        if let Some(mirror) = &made.mirror {
            mirror.settle();
        }
        if let Some(overlay) = &made.overlay {
            overlay.settle();
        }
        if let Some(part) = &made.checkpoints {
            part.close();
        }
        // A flush of the others would flush their parts, which have a shutdown of their own.
        use manifest::Driver::{File, Object, Overlay, Remote};
        if !matches!(self.device.driver, File(_) | Remote(_) | Object(_) | Overlay(_)) {
            return Ok(());
        }
        if let Some(object) = &made.object {
            // After a clean close, the next server needn't wait. An error names the data that may
            // be lost.
            return object.close().map_err(|error| ShutdownError::new(error.to_string()));
        }
        made.queue.flush().map_err(|error| {
            ShutdownError::new(format!("the flush failed, so recent writes may be lost: {error}"))
        })?;
        match &made.file {
            // After a device is removed from a running server, its file may have been moved on
            // purpose.
            Some(file) if self.server_ends.load(Ordering::Acquire) => is_in_its_place(file),
            _ => Ok(()),
        }
    }

    fn has_shutdown(&self) -> bool {
        self.made.get().is_none_or(|made| {
            // A device that is read-only because it lost data has writes whose flush must fail.
            let geometry = made.queue.driver().info().geometry;
            geometry.can_flush && !geometry.read_only || made.checkpoints.is_some()
        })
    }
}

/// The driver that brings up the devices of one kind, `name` in the manifest.
pub(crate) struct VolumeDriver {
    name: &'static str,
    context: VolumeContext,
}

impl VolumeDriver {
    /// Returns a driver for each kind that a manifest may name.
    pub(crate) fn all(context: &VolumeContext) -> impl Iterator<Item = VolumeDriver> {
        let context = context.clone();
        manifest::driver_names().map(move |name| VolumeDriver { name, context: context.clone() })
    }
}

impl device::Driver for VolumeDriver {
    fn name(&self) -> &str {
        self.name
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let device = cx.config::<manifest::Device>()?;
        let parts = device.driver.over().iter().map(|name| cx.supplier::<Volume>(name));
        let volume =
            Volume::new(self.context.clone(), device.clone(), parts.collect::<Result<_, _>>()?);
        match volume.make() {
            Ok(made) => volume.came(made),
            Err(error) if self.context.missing.may(&device.name) => {
                self.context.missing.add(&device.name, error.to_string());
                *volume.why.lock() = error.to_string();
            }
            Err(error) => return Err(error),
        }
        Ok(Arc::new(volume))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_by_each_of_its_paths_and_another_file_at_a_path_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let [path, link, copy] = ["a", "b", "c"].map(|name| folder.path().join(name));
        std::fs::write(&path, "data").unwrap();
        std::fs::hard_link(&path, &link).unwrap();
        std::fs::copy(&path, &copy).unwrap();
        let identity = identity_of(&path);
        assert_eq!(identity_of(&link), identity);
        assert_ne!(identity_of(&copy), identity);
        std::fs::rename(&copy, &path).unwrap();
        assert_ne!(identity_of(&path), identity);
        assert_eq!(identity_of(&link), identity);
    }
}
