//! Front ends of exports beside NBD: disks of this machine.
//!
//! An export with `ublk = true` is `/dev/ublkbN`, with a link below `/dev/corewise` that has the
//! export's name. The disk outlives the server if it is in use at the server's end, and the next
//! server of the same manifest takes it over. The disk's mark depends on the place of its data, so
//! no server takes a disk over with other data.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::blockmq::BlockDeviceExt;
use corewise::export::{Limiter, Rate, SharedDevice};
use corewise::nbd::{self, ExportStatus};
use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise::sync::{Mutex, context, time};
use corewise::topology::Machine;
use corewise::ublk::{Disk, DiskOptions, Disks, Removal};

use super::volume::Volume;
use crate::block_use;
use crate::control::served::ShownDisk;
use crate::manifest;

/// Folder of the links to disks.
const LINKS: &str = "/dev/corewise";

/// The front ends of all exports.
pub(crate) struct FrontEnds {
    disks: Disks,
    /// What distinguishes this server from others on the machine: its manifest.
    server: String,
    /// A: true once the server ends: disks in use stay. Release and Acquire.
    server_ends: AtomicBool,
    /// L: is the lock; guards the disks, by export.
    open: Mutex<BTreeMap<String, Arc<OpenDisk>>>,
}

/// A disk, with all that belongs to it.
struct OpenDisk {
    /// L: is the lock, held while the disk ends; guards the disk until then.
    disk: Mutex<Option<Disk>>,
    /// Name below `/dev`.
    name: String,
    path: PathBuf,
    link: PathBuf,
    /// Device of the manifest.
    device: String,
    /// True if another server can take it over.
    outlives: bool,
    shared: Arc<SharedDevice>,
    since: Instant,
}

impl FrontEnds {
    /// Prepares front ends. `server` distinguishes this server from others on the machine.
    pub(crate) fn new(machine: &Machine, server: String) -> FrontEnds {
        let (server_ends, open) = (AtomicBool::new(false), Mutex::default());
        FrontEnds { disks: Disks::new(machine), server, server_ends, open }
    }

    /// Marks the end of the server.
    pub(crate) fn server_ends(&self) {
        self.server_ends.store(true, Ordering::Release);
    }

    /// Opens what an export asks for. Blocks, since the kernel reads the partition table.
    pub(crate) fn open(&self, export: &manifest::Export, volume: &Volume) -> Result<(), String> {
        if !export.ublk {
            return Ok(());
        }
        let shared = volume.shared().map_err(|error| error.to_string())?;
        let link = link(export).ok_or_else(|| {
            format!("ublk: '{}' can't be a file name: give the export another name", export.name)
        })?;
        let identity = volume.identity();
        let data = identity.as_deref().unwrap_or_default();
        let mark = DiskOptions::mark_of(&format!("{}\n{}\n{data}", self.server, export.name));
        let was_left = left_mark(&link);
        let options = DiskOptions {
            mark,
            outlives: identity.is_some(),
            read_only: export.read_only,
            limiters: limiters(export),
            may_lose: volume.may_lose() && !was_left.exists(),
        };
        let disk = context::blocking("a disk is made", || self.disks.add(&shared, options));
        let disk = disk.map_err(|error| format!("ublk: {error}"))?;
        let _ = fs::remove_file(&was_left);
        let path = disk.path();
        if let Err(error) = point(&link, &path) {
            tracing::warn!(link = %link.display(), %error, "the link to a disk can't be made");
        }
        if disk.was_taken_over() {
            tracing::info!(export = export.name, disk = %path.display(),
                "took over the disk that a former server had left");
        }
        let open = OpenDisk {
            name: format!("ublkb{}", disk.number()),
            disk: Mutex::new(Some(disk)),
            path,
            link,
            device: export.device.clone(),
            outlives: identity.is_some(),
            shared,
            since: time::now(),
        };
        self.open.lock().insert(export.name.clone(), Arc::new(open));
        Ok(())
    }

    fn get(&self, export: &str) -> Option<Arc<OpenDisk>> {
        self.open.lock().get(export).cloned()
    }

    /// Returns the path of an export's disk, if it is one.
    pub(crate) fn path(&self, export: &str) -> Option<PathBuf> {
        self.get(export).map(|open| open.path.clone())
    }

    /// Returns the path of an export's disk, if it is one and something uses it.
    pub(crate) fn in_use(&self, export: &str) -> Option<PathBuf> {
        let open = self.get(export)?;
        block_use::is_in_use(&open.name).then(|| open.path.clone())
    }

    /// Ends the front ends of an export. At the server's end a disk that is in use stays for the
    /// next server. Blocks.
    pub(crate) fn close(&self, export: &str, time: Duration) -> Result<(), String> {
        let Some(open) = self.get(export) else { return Ok(()) };
        let Some(disk) = open.disk.lock().take() else { return Ok(()) };
        let server_ends = self.server_ends.load(Ordering::Acquire);
        let result = context::blocking("a disk ends", || open.close(disk, server_ends, time));
        self.open.lock().remove(export);
        result
    }

    /// Gives disks of a device that has grown its new size. Returns those that keep the old one.
    pub(crate) fn grown(&self, device: &str) -> Vec<PathBuf> {
        let of_device: Vec<_> =
            self.open.lock().values().filter(|open| open.device == device).cloned().collect();
        let keeps = |open: &Arc<OpenDisk>| {
            let disk = open.disk.lock();
            let has_grown = disk.as_ref().map_or(Ok(true), Disk::grow);
            if let Err(error) = &has_grown {
                tracing::warn!(%error, "a disk keeps its size");
            }
            !has_grown.unwrap_or(false)
        };
        of_device.iter().filter(|open| keeps(open)).map(|open| open.path.clone()).collect()
    }

    /// Returns the disks, by export.
    pub(crate) fn shown(&self) -> Vec<ShownDisk> {
        let open: Vec<_> =
            self.open.lock().iter().map(|(name, open)| (name.clone(), Arc::clone(open))).collect();
        let shown = |(export, open): (String, Arc<OpenDisk>)| {
            // A disk that ends shows nothing any more.
            let status = open.disk.try_lock()?.as_ref()?.status();
            let age = time::now().saturating_duration_since(open.since);
            Some(ShownDisk { export, path: open.path.clone(), age, status })
        };
        open.into_iter().filter_map(shown).collect()
    }

    /// Returns the exports of a server, with the disks among their clients.
    pub(crate) fn exports(&self, server: &nbd::Server) -> Vec<ExportStatus> {
        let mut exports = server.exports();
        for ShownDisk { export, status, .. } in self.shown() {
            if let Some(of) = exports.iter_mut().find(|other| other.name == export) {
                of.clients += 1;
                of.in_flight += status.in_flight;
                of.traffic.add(&status.traffic);
            }
        }
        exports
    }
}

impl OpenDisk {
    fn close(&self, disk: Disk, server_ends: bool, time: Duration) -> Result<(), String> {
        let name = self.path.display();
        let disk = if server_ends && self.outlives {
            match disk.remove_unused(time).map_err(|error| error.to_string())? {
                Removal::Gone => {
                    self.unlink();
                    return Ok(());
                }
                Removal::InUse(disk) => return self.leave(disk, time),
                Removal::Unknown(disk) if block_use::is_in_use(&self.name) => {
                    return self.leave(disk, time);
                }
                Removal::Unknown(disk) => disk,
            }
        } else {
            disk
        };
        let result = disk.remove(time).map_err(|error| error.to_string());
        self.unlink();
        result.map_err(|why| format!("{name} is not gone: {why}"))
    }

    /// Leaves the disk to the next server.
    fn leave(&self, disk: Disk, time: Duration) -> Result<(), String> {
        let name = self.path.display();
        if !disk.leave(time) {
            return Err(format!(
                "{name} has requests that were not answered in time; the next \
                                server gets them again"
            ));
        }
        self.shared
            .device()
            .flush()
            .map_err(|error| format!("{name}: the flush failed: {error}"))?;
        // Says that nothing was lost.
        if let Err(error) = fs::write(left_mark(&self.link), "") {
            tracing::warn!(%error, disk = %name, "the next server can't see that nothing was lost");
        }
        tracing::info!(disk = %name, "the disk is in use, and waits for the next server");
        Ok(())
    }

    fn unlink(&self) {
        if fs::read_link(&self.link).is_ok_and(|target| target == self.path) {
            let _ = fs::remove_file(&self.link);
        }
    }
}

fn limiters(export: &manifest::Export) -> Vec<Arc<Limiter>> {
    let rate = |limit: manifest::Limit| Rate { requests: limit.iops, bytes: limit.bytes };
    let limits = [export.limit, export.client_limit].into_iter().flatten();
    limits.filter_map(|limit| Limiter::new(rate(limit))).map(Arc::new).collect()
}

/// Returns the path of the link to an export's disk, if its name can be that of a file.
fn link(export: &manifest::Export) -> Option<PathBuf> {
    let name = if export.name.is_empty() { &export.device } else { &export.name };
    let is_file = !name.starts_with('.') && !name.contains(['/', '\0']) && name.len() <= 200;
    is_file.then(|| Path::new(LINKS).join(name))
}

/// Returns the path of the file that says that a disk was left with nothing lost. `/dev` is empty
/// after a start of the machine, as the kernel's list of disks is.
fn left_mark(link: &Path) -> PathBuf {
    let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
    link.with_file_name(format!(".{name}.left"))
}

/// Makes a link, or makes it point elsewhere.
fn point(link: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir_all(LINKS)?;
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(target, link)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn export(name: &str) -> manifest::Export {
        let text = format!(
            "[[device]]\nname = \"disk0\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"disk0\"\n\
             name = \"{name}\"\nlimit = {{ iops = 5 }}\n"
        );
        let Manifest { mut exports, .. } =
            manifest::read(&text, Path::new("/")).into_manifest("a.toml").unwrap();
        exports.remove(0)
    }

    #[test]
    fn the_link_has_the_name_of_the_export_or_of_its_device() {
        let file = |name| link(&export(name)).map(|link| link.display().to_string());
        assert_eq!(file("data"), Some("/dev/corewise/data".to_string()));
        assert_eq!(file(""), Some("/dev/corewise/disk0".to_string()));
        for name in ["..", ".hidden", "a/b", &"x".repeat(201)] {
            assert_eq!(file(name), None, "{name}");
        }
    }

    #[test]
    fn the_mark_of_a_disk_that_was_left_lies_beside_its_link() {
        let link = link(&export("data")).unwrap();
        assert_eq!(left_mark(&link), Path::new("/dev/corewise/.data.left"));
    }

    #[test]
    fn a_disk_keeps_to_the_limits_of_its_export() {
        assert_eq!(limiters(&export("data")).len(), 1);
    }
}
