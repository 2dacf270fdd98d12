//! An export as a disk of this machine, by ublk: `/dev/ublkbN`, with a link below `/dev/corewise`
//! that has the export's name.
//!
//! The disk outlives the server if it is in use at the server's end, and the next server of the
//! same manifest takes it over. The disk's mark depends on the place of its data, so no server
//! takes a disk over with other data.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corewise::blockmq::BlockDeviceExt;
use corewise::export::{Limiter, SharedDevice};
use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise::sync::{Mutex, Parker, context, time};
use corewise::ublk::{self, DiskOptions, DiskStatus, Disks, Mark, Removal};

use super::links::{self, DiskRecord, LINKS};
use super::volume::Volume;
use crate::block_use;
use crate::manifest::{self, ResolvedAccess, UblkDisk};
use crate::report::{DiskEvent, Report};

/// Time for udev to handle a new disk. It sets owner, group and mode, too.
const UDEV: Duration = Duration::from_secs(2);
const UDEV_PAUSE: Duration = Duration::from_millis(5);
/// Bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

/// A disk of this machine.
pub(super) struct LocalDisk {
    /// L: is the lock, held while the disk ends; guards the disk until then.
    disk: Mutex<Option<ublk::Disk>>,
    export: String,
    number: u32,
    pub(super) path: PathBuf,
    pub(super) mark: Mark,
    /// True if another server can take it over.
    outlives: bool,
    shared: Arc<SharedDevice>,
    /// L: is the lock, a leaf; guards the access that the manifest wants, if it says so.
    access: Mutex<Option<ResolvedAccess>>,
    /// A: true once it was reported that somebody else has taken the disk away. Relaxed: one thread
    /// at a time reports.
    taken_away: AtomicBool,
    report: Report,
}

/// The server of a disk.
pub(super) struct DiskServer<'a> {
    pub(super) disks: &'a Disks,
    /// Path of the manifest, or another text that distinguishes the server from others.
    pub(super) place: &'a str,
    pub(super) report: &'a Report,
}

impl LocalDisk {
    /// Makes the disk of an export, or takes it over. `names` are those of all exports of its
    /// device that are disks. Blocks.
    pub(super) fn open(
        server: &DiskServer<'_>,
        (export, wanted): (&manifest::Export, &UblkDisk),
        volume: &Volume,
        shared: &Arc<SharedDevice>,
        names: &[String],
    ) -> Result<LocalDisk, String> {
        let (link, access) = (link(export)?, wanted.resolve()?);
        let identity = volume.identity();
        let data = identity.as_deref().unwrap_or_default();
        let mark_of = |name: &String| Mark::of(data, &format!("{}\n{name}", server.place));
        let mark = mark_of(&export.name);
        let was_left = left_mark(mark);
        let limits = [export.limit, export.client_limit].into_iter().flatten();
        let limiters = limits.filter_map(|limit| Limiter::new(limit.into())).map(Arc::new);
        let options = DiskOptions {
            mark,
            others: names.iter().map(mark_of).collect(),
            is_new: volume.is_new(),
            outlives: identity.is_some(),
            read_only: export.read_only,
            limiters: limiters.collect(),
            may_lose: volume.may_lose() && !was_left.exists(),
        };
        let disk = context::blocking("a disk is made", || server.disks.add(shared, options));
        let disk = disk.map_err(|error| error.to_string())?;
        let _ = fs::remove_file(&was_left);
        let (number, path) = (disk.number(), disk.path());
        let record = DiskRecord::new(mark, &export.name, server.place, Some(link));
        if let Err(error) = record.make(number) {
            tracing::warn!(link, disk = %path.display(), %error, "a disk has no link");
        }
        let event = match disk.was_taken_over() {
            true => {
                tracing::info!(export = export.name, disk = %path.display(),
                    "took over the disk that a former server had left");
                DiskEvent::TakenOver
            }
            false => DiskEvent::Made,
        };
        let this = LocalDisk {
            disk: Mutex::new(Some(disk)),
            export: export.name.clone(),
            number,
            path,
            mark,
            outlives: identity.is_some(),
            shared: Arc::clone(shared),
            access: Mutex::new(access),
            taken_away: AtomicBool::new(false),
            report: server.report.clone(),
        };
        if access.is_some() {
            context::blocking("udev handles a disk", || await_udev(this.name()));
            this.keep_access();
        }
        this.tell(event);
        Ok(this)
    }

    /// Returns the name below `/dev`.
    fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    fn tell(&self, event: DiskEvent) {
        self.report.disk(&self.export, &self.path, event);
    }

    pub(super) fn is_number(&self, number: u32) -> bool {
        self.number == number
    }

    /// Returns true if something has it mounted or open, or waits for it.
    pub(super) fn is_in_use(&self) -> bool {
        self.status().is_some_and(|status| status.in_flight > 0)
            || block_use::is_in_use(self.name())
    }

    /// Returns counters and load. `None`: the disk ends.
    pub(super) fn status(&self) -> Option<DiskStatus> {
        Some(self.disk.try_lock()?.as_ref()?.status())
    }

    /// Sets the access that the nodes are to have.
    pub(super) fn set_access(&self, wanted: &UblkDisk) -> Result<(), String> {
        *self.access.lock() = wanted.resolve()?;
        self.keep_access();
        Ok(())
    }

    /// Keeps the access to the nodes, and reports a disk that somebody else has taken away.
    pub(super) fn tick(&self) {
        let disk = self.disk.try_lock();
        // One that ends reports its end itself.
        let Some(disk) = disk.as_deref().and_then(Option::as_ref) else { return };
        match disk.was_taken_away() {
            false => self.keep_access(),
            true if self.taken_away.swap(true, Ordering::Relaxed) => {}
            true => {
                tracing::warn!(disk = %self.path.display(), "somebody else has taken a disk away");
                self.tell(DiskEvent::Removed);
            }
        }
    }

    /// Gives the nodes of the disk and its partitions the access that the manifest wants. Others,
    /// such as udev, may have changed it.
    fn keep_access(&self) {
        let Some(access) = *self.access.lock() else { return };
        let name = self.name();
        let parts =
            fs::read_dir(Path::new("/sys/block").join(name)).into_iter().flatten().flatten();
        let parts = parts.filter_map(|entry| entry.file_name().into_string().ok());
        let parts = parts.filter(|part| part.starts_with(name));
        for node in parts.chain([name.to_string()]) {
            let node = Path::new("/dev").join(node);
            match give(&node, access) {
                // Its node comes later, or is gone.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(node = %node.display(), %error, "a disk keeps its access");
                }
                Ok(()) => {}
            }
        }
    }

    /// Gives the disk the size of its device. Returns false if it keeps the former one.
    pub(super) fn grow(&self) -> bool {
        let disk = self.disk.lock();
        let has_grown = disk.as_ref().map_or(Ok(true), ublk::Disk::grow);
        if let Err(error) = &has_grown {
            tracing::warn!(%error, "a disk keeps its size");
        }
        let has_grown = has_grown.unwrap_or(false);
        if has_grown {
            self.tell(DiskEvent::Grew);
        }
        has_grown
    }

    /// Ends the disk. If the server ends, and the disk is in use, the next server gets it. Returns
    /// a note if the device doesn't answer the disk's requests. Blocks.
    pub(super) fn close(
        &self,
        server_ends: bool,
        time: Duration,
    ) -> Result<Option<String>, String> {
        let Some(disk) = self.disk.lock().take() else { return Ok(None) };
        context::blocking("a disk ends", || self.end(disk, server_ends, time))
    }

    fn end(
        &self,
        disk: ublk::Disk,
        server_ends: bool,
        time: Duration,
    ) -> Result<Option<String>, String> {
        let disk = if server_ends && self.outlives {
            match disk.remove_unused(time).map_err(|error| error.to_string())? {
                Removal::Gone => {
                    self.gone();
                    return Ok(None);
                }
                Removal::InUse(disk) => return self.leave(disk, time).map(|()| None),
                Removal::Unknown(disk) if self.is_in_use() => {
                    return self.leave(disk, time).map(|()| None);
                }
                Removal::Unknown(disk) => disk,
            }
        } else {
            disk
        };
        let (status, result) = (disk.status(), disk.remove(time));
        self.gone();
        let name = self.path.display();
        match result {
            Ok(()) => Ok(None),
            // The user has set the time, so this is no failure, as with other clients.
            Err(ublk::Error::Command { error, .. }) if error.kind() == io::ErrorKind::TimedOut => {
                Ok(Some(format!(
                    "{name} ends with {} unanswered; it is gone once the device answers",
                    crate::units::count(status.in_flight, "request")
                )))
            }
            Err(error) => Err(format!("{name} is not gone: {error}")),
        }
    }

    fn gone(&self) {
        links::remove(self.number, self.mark);
        if !self.taken_away.load(Ordering::Relaxed) {
            self.tell(DiskEvent::Removed);
        }
    }

    /// Leaves the disk to the next server.
    fn leave(&self, disk: ublk::Disk, time: Duration) -> Result<(), String> {
        let name = self.path.display();
        let is_quiet = disk.leave(time);
        self.tell(DiskEvent::Left);
        if !is_quiet {
            return Err(format!(
                "{name} has requests that were not answered in time; the next server gets them again"
            ));
        }
        self.shared
            .device()
            .flush()
            .map_err(|error| format!("{name}: the flush failed: {error}"))?;
        // Says that nothing was lost.
        if let Err(error) = fs::write(left_mark(self.mark), "") {
            tracing::warn!(%error, disk = %name, "the next server can't see that nothing was lost");
        }
        tracing::info!(disk = %name, "the disk is in use, and waits for the next server");
        Ok(())
    }
}

/// Waits until udev has handled a new disk, if there is udev, and for a short time.
fn await_udev(name: &str) {
    if !Path::new("/run/udev/control").exists() {
        return;
    }
    let dev = fs::read_to_string(Path::new("/sys/block").join(name).join("dev"));
    let entry = Path::new("/run/udev/data").join(format!("b{}", dev.unwrap_or_default().trim()));
    let deadline = time::now() + UDEV;
    while !entry.exists() && time::now() < deadline {
        Parker::new().park_timeout(UDEV_PAUSE);
    }
}

/// Gives a node this access, unless it has it.
fn give(node: &Path, access: ResolvedAccess) -> io::Result<()> {
    let meta = fs::symlink_metadata(node)?;
    let differs = |has: u32, wanted: Option<u32>| wanted.is_some_and(|wanted| wanted != has);
    if differs(meta.uid(), access.uid) || differs(meta.gid(), access.gid) {
        chown(node, access.uid, access.gid)?;
    }
    if meta.mode() & PERMISSIONS != access.mode {
        fs::set_permissions(node, Permissions::from_mode(access.mode))?;
    }
    Ok(())
}

/// Returns the name of the link to an export's disk, or the reason why it can't be that of a file.
pub(crate) fn link(export: &manifest::Export) -> Result<&str, String> {
    let name = if export.name.is_empty() { &export.device } else { &export.name };
    let is_file = !name.starts_with('.') && !name.contains(['/', '\0']) && name.len() <= 200;
    is_file.then_some(name.as_str()).ok_or_else(|| {
        format!(
            "the export '{name}' can't have a link in {LINKS}: a name there has no '/', doesn't \
             begin with a dot, and has at most 200 bytes"
        )
    })
}

/// Returns the path of the file that says that a disk was left with nothing lost.
fn left_mark(mark: Mark) -> PathBuf {
    Path::new(LINKS).join(format!(".{:016x}.left", mark.word()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn export(name: &str) -> manifest::Export {
        let text = format!(
            "[[device]]\nname = \"disk0\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"disk0\"\n\
             name = \"{name}\"\n"
        );
        let Manifest { mut exports, .. } =
            manifest::read(&text, Path::new("/")).into_manifest("a.toml").unwrap();
        exports.remove(0)
    }

    #[test]
    fn the_link_has_the_name_of_the_export_or_of_its_device() {
        let file = |name| link(&export(name)).ok().map(str::to_string);
        assert_eq!(file("data"), Some("data".to_string()));
        assert_eq!(file(""), Some("disk0".to_string()));
        for name in ["..", ".hidden", "a/b", &"x".repeat(201)] {
            assert_eq!(file(name), None, "{name}");
        }
    }

    #[test]
    fn a_disk_that_was_left_has_a_file_of_its_own_that_says_so() {
        let left = |export| left_mark(Mark::of("a file", export));
        assert_eq!(left("data"), left("data"));
        assert!(left("data") != left("other"), "another disk's mark says nothing about this one");
    }

    #[test]
    fn a_node_gets_its_access_back_after_a_change() {
        let node = tempfile::NamedTempFile::new().unwrap();
        let has = || {
            let meta = node.path().metadata().unwrap();
            (meta.uid(), meta.gid(), meta.mode() & PERMISSIONS)
        };
        let (uid, gid, _) = has();
        let access = ResolvedAccess { uid: Some(uid), gid: Some(gid), mode: 0o640 };
        give(node.path(), access).unwrap();
        assert_eq!(has(), (uid, gid, 0o640));
        fs::set_permissions(node.path(), Permissions::from_mode(0o666)).unwrap();
        give(node.path(), access).unwrap();
        assert_eq!(has(), (uid, gid, 0o640));
        if rustix::process::geteuid().is_root() {
            let others = ResolvedAccess { uid: Some(7), gid: None, mode: 0o600 };
            give(node.path(), others).unwrap();
            assert_eq!(has(), (7, gid, 0o600));
        }
    }
}
