//! Front ends of exports beside NBD: disks of this machine and of virtual machines.
//!
//! An export with `ublk = true` is `/dev/ublkbN`, with a link below `/dev/corewise` that has the
//! export's name. The disk outlives the server if it is in use at the server's end, and the next
//! server of the same manifest takes it over. The disk's mark depends on the place of its data, so
//! no server takes a disk over with other data.
//!
//! An export with `vhost_user` is a virtio disk on that socket. Its frontend reconnects to the next
//! server by itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::blockmq::BlockDeviceExt;
use corewise::export::{Access, Identity, Limiter, Rate, SharedDevice, SocketAccess};
use corewise::nbd::{self, ClientEvent, ExportStatus};
use corewise::ring::RingSet;
use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise::sync::{Mutex, context, time};
use corewise::ublk::{self, DiskOptions, Disks, Mark, Removal};
use corewise::vhost::{self, FrontendEvent};

use super::volume::Volume;
use crate::block_use;
use crate::control::served::ShownDisk;
use crate::manifest::{self, ResolvedAccess};
use crate::report::Report;

/// Folder of the links to disks.
const LINKS: &str = "/dev/corewise";

/// The front ends of all exports.
pub(crate) struct FrontEnds {
    disks: Disks,
    /// The NBD server, which gives clients their numbers and their memory.
    clients: Arc<nbd::Server>,
    report: Report,
    /// L: is the lock; guards the server of virtual machines, which is made with its first disk.
    guests: Mutex<Option<Arc<vhost::Server>>>,
    /// Text that distinguishes this server from others on the machine: its manifest's path.
    server: String,
    /// A: true once the server ends: disks in use stay. Release and Acquire.
    server_ends: AtomicBool,
    /// L: is the lock; guards the names of the exports that are disks of this machine, by device.
    expected: Mutex<BTreeMap<String, Vec<String>>>,
    /// L: is the lock; guards the front ends, by export.
    open: Mutex<BTreeMap<String, Arc<OpenExport>>>,
}

/// The front ends of one export.
struct OpenExport {
    /// Device of the manifest.
    device: String,
    local: Option<LocalDisk>,
    guest: Option<GuestDisk>,
    since: Instant,
}

/// A disk of this machine.
struct LocalDisk {
    /// L: is the lock, held while the disk ends; guards the disk until then.
    disk: Mutex<Option<ublk::Disk>>,
    /// Name below `/dev`.
    name: String,
    path: PathBuf,
    mark: Mark,
    /// True if another server can take it over.
    outlives: bool,
    shared: Arc<SharedDevice>,
}

/// A disk of a virtual machine.
struct GuestDisk {
    /// L: is the lock, held while the disk ends; guards the disk until then.
    disk: Mutex<Option<vhost::Disk>>,
    socket: PathBuf,
    /// L: is the lock, held for a moment; guards the guest that has the disk.
    client: Arc<Mutex<Option<Guest>>>,
}

/// The guest that has a disk.
#[derive(Clone, Debug)]
struct Guest {
    /// Number of the client.
    id: u64,
    who: Identity,
    since: Instant,
}

impl FrontEnds {
    /// Prepares front ends. `server` distinguishes this server from others on the machine.
    pub(crate) fn new(
        rings: &RingSet,
        server: String,
        clients: Arc<nbd::Server>,
        report: Report,
    ) -> FrontEnds {
        let (server_ends, open) = (AtomicBool::new(false), Mutex::default());
        let (disks, guests) = (Disks::new(rings), Mutex::default());
        let expected = Mutex::default();
        FrontEnds { disks, clients, report, guests, server, server_ends, expected, open }
    }

    /// Announces the exports of a manifest, before any of them is opened.
    pub(crate) fn expect(&self, exports: &[manifest::Export]) {
        let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for export in exports.iter().filter(|export| export.ublk) {
            expected.entry(export.device.clone()).or_default().push(export.name.clone());
        }
        *self.expected.lock() = expected;
    }

    /// Marks the end of the server.
    pub(crate) fn server_ends(&self) {
        self.server_ends.store(true, Ordering::Release);
    }

    /// Opens the front ends that an export asks for. Blocks.
    pub(crate) fn open(&self, export: &manifest::Export, volume: &Volume) -> Result<(), String> {
        if !export.ublk && export.vhost_user.is_none() {
            return Ok(());
        }
        let shared = volume.shared().map_err(|error| error.to_string())?;
        let guest = self.open_guest(export, &shared).map_err(|why| format!("vhost_user: {why}"))?;
        let local =
            self.open_local(export, volume, shared).map_err(|why| format!("ublk: {why}"))?;
        let open = OpenExport { device: export.device.clone(), local, guest, since: time::now() };
        self.open.lock().insert(export.name.clone(), Arc::new(open));
        Ok(())
    }

    fn open_guest(
        &self,
        export: &manifest::Export,
        shared: &Arc<SharedDevice>,
    ) -> Result<Option<GuestDisk>, String> {
        let Some(at) = &export.vhost_user else { return Ok(None) };
        let guests = {
            let mut guests = self.guests.lock();
            match &*guests {
                Some(guests) => Arc::clone(guests),
                None => {
                    let made = vhost::Server::new().map_err(|error| error.to_string())?;
                    Arc::clone(guests.insert(Arc::new(made)))
                }
            }
        };
        let rate =
            [export.limit, export.client_limit].into_iter().flatten().map(rate).reduce(lower);
        let access = Access { uids: export.allow_uids.clone(), names: None };
        let client = Arc::new(Mutex::new(None));
        let ResolvedAccess { uid: owner, gid: group, mode } = at.value.access.resolve()?;
        let options = vhost::Options::default()
            .socket(SocketAccess { owner, group, mode })
            .read_only(export.read_only)
            .rate(rate.unwrap_or_default())
            .access(access)
            .memory_pool(self.clients.memory_pool())
            .observer(self.guest_observer(export.name.clone(), Arc::clone(&client)));
        let disk = guests.listen(&at.value.path, Arc::clone(shared), options);
        let disk = disk.map_err(|error| error.to_string())?;
        let (disk, socket) = (Mutex::new(Some(disk)), at.value.path.clone());
        Ok(Some(GuestDisk { disk, socket, client }))
    }

    /// Returns the function that records and reports the guests of an export.
    fn guest_observer(
        &self,
        export: String,
        client: Arc<Mutex<Option<Guest>>>,
    ) -> impl Fn(&FrontendEvent<'_>) + Send + Sync + 'static {
        let (clients, report) = (Arc::clone(&self.clients), self.report.clone());
        move |event| match *event {
            FrontendEvent::Attached { who } => {
                let id = clients.next_client_id();
                *client.lock() = Some(Guest { id, who: who.clone(), since: time::now() });
                let Identity { peer, pid, names } = who;
                let (peer, pid) = (*peer, *pid);
                report.client(&ClientEvent::Attached { id, peer, pid, names, export: &export });
            }
            FrontendEvent::Left { who, why } => {
                let Some(Guest { id, .. }) = client.lock().take() else { return };
                let Identity { peer, pid, names } = who;
                let (peer, pid, export) = (*peer, *pid, &export);
                report.client(&ClientEvent::Left { id, peer, pid, names, export, why });
            }
            _ => {}
        }
    }

    fn open_local(
        &self,
        export: &manifest::Export,
        volume: &Volume,
        shared: Arc<SharedDevice>,
    ) -> Result<Option<LocalDisk>, String> {
        if !export.ublk {
            return Ok(None);
        }
        let link = link(export)?;
        let identity = volume.identity();
        let data = identity.as_deref().unwrap_or_default();
        let mark_of = |name: &String| Mark::of(data, &format!("{}\n{name}", self.server));
        let mark = mark_of(&export.name);
        let others = self.expected.lock().get(&export.device).cloned().unwrap_or_default();
        let was_left = left_mark(mark);
        let limits = [export.limit, export.client_limit].into_iter().flatten();
        let options = DiskOptions {
            mark,
            others: others.iter().map(mark_of).collect(),
            is_new: volume.is_new(),
            outlives: identity.is_some(),
            read_only: export.read_only,
            limiters: limits.filter_map(|limit| Limiter::new(rate(limit))).map(Arc::new).collect(),
            may_lose: volume.may_lose() && !was_left.exists(),
        };
        let disk = context::blocking("a disk is made", || self.disks.add(&shared, options));
        let disk = disk.map_err(|error| error.to_string())?;
        let _ = fs::remove_file(&was_left);
        let path = disk.path();
        if let Err(error) = point(&link, &path) {
            tracing::warn!(link = %link.display(), disk = %path.display(), %error,
                "a disk has no link");
        }
        if disk.was_taken_over() {
            tracing::info!(export = export.name, disk = %path.display(),
                "took over the disk that a former server had left");
        }
        let name = format!("ublkb{}", disk.number());
        let (disk, outlives) = (Mutex::new(Some(disk)), identity.is_some());
        Ok(Some(LocalDisk { disk, name, path, mark, outlives, shared }))
    }

    fn get(&self, export: &str) -> Option<Arc<OpenExport>> {
        self.open.lock().get(export).cloned()
    }

    /// Returns the path of an export's disk of this machine, if it has one.
    pub(crate) fn path(&self, export: &str) -> Option<PathBuf> {
        self.get(export)?.local.as_ref().map(|local| local.path.clone())
    }

    /// Returns the socket of an export's disk of a virtual machine, if it has one.
    pub(crate) fn socket(&self, export: &str) -> Option<PathBuf> {
        self.get(export)?.guest.as_ref().map(|guest| guest.socket.clone())
    }

    /// Returns the path of an export's disk of this machine, if it has one that something uses.
    pub(crate) fn in_use(&self, export: &str) -> Option<PathBuf> {
        let open = self.get(export)?;
        let local = open.local.as_ref()?;
        block_use::is_in_use(&local.name).then(|| local.path.clone())
    }

    /// Returns true if a virtual machine uses the export.
    pub(crate) fn has_guest(&self, export: &str) -> bool {
        self.get(export).is_some_and(|open| open.guest.as_ref().is_some_and(GuestDisk::is_in_use))
    }

    /// Ends the front ends of an export. At the server's end a disk of this machine that is in use
    /// stays for the next server. Blocks.
    pub(crate) fn close(&self, export: &str, time: Duration) -> Result<(), String> {
        let Some(open) = self.get(export) else { return Ok(()) };
        let server_ends = self.server_ends.load(Ordering::Acquire);
        let guest = open.guest.as_ref().map_or(Ok(()), |guest| guest.close(time));
        let local = open.local.as_ref().map_or(Ok(()), |local| local.close(server_ends, time));
        self.open.lock().remove(export);
        local.and(guest)
    }

    /// Gives disks of a device that has grown its new size. Returns those that keep the old one.
    pub(crate) fn grown(&self, device: &str) -> Vec<PathBuf> {
        let open: Vec<_> =
            self.open.lock().values().filter(|open| open.device == device).cloned().collect();
        for guest in open.iter().filter_map(|open| open.guest.as_ref()) {
            // A frontend that isn't connected learns of the size when it connects.
            guest.disk.lock().as_ref().map(vhost::Disk::resized);
        }
        let keeps = |local: &&LocalDisk| {
            let disk = local.disk.lock();
            let has_grown = disk.as_ref().map_or(Ok(true), ublk::Disk::grow);
            if let Err(error) = &has_grown {
                tracing::warn!(%error, "a disk keeps its size");
            }
            !has_grown.unwrap_or(false)
        };
        let local = open.iter().filter_map(|open| open.local.as_ref());
        local.filter(keeps).map(|local| local.path.clone()).collect()
    }

    /// Returns the disks, by export: those of this machine, and those that virtual machines use.
    pub(crate) fn shown(&self) -> Vec<ShownDisk> {
        let open: Vec<_> =
            self.open.lock().iter().map(|(name, open)| (name.clone(), Arc::clone(open))).collect();
        let shown = |(export, open): (String, Arc<OpenExport>)| {
            let age = time::now().saturating_duration_since(open.since);
            // A disk that ends shows nothing any more.
            let local = open.local.as_ref().and_then(|local| {
                let status = local.disk.try_lock()?.as_ref()?.status();
                let (in_flight, traffic) = (status.in_flight, status.traffic);
                let (path, guest) = (local.path.clone(), None);
                Some(ShownDisk { export: export.clone(), path, guest, age, in_flight, traffic })
            });
            [local, open.guest.as_ref().and_then(|guest| guest.shown(&export))]
        };
        open.into_iter().flat_map(shown).flatten().collect()
    }

    /// Ends the connection of the guest that has this number. Returns what it was.
    pub(crate) fn disconnect(&self, client: u64) -> Option<ShownDisk> {
        let open: Vec<_> =
            self.open.lock().iter().map(|(name, open)| (name.clone(), Arc::clone(open))).collect();
        open.iter().find_map(|(export, open)| {
            let guest = open.guest.as_ref()?;
            let shown = guest.shown(export)?;
            let is_it = shown.guest.as_ref().is_some_and(|(id, _)| *id == client);
            let disk = guest.disk.try_lock()?;
            (is_it && disk.as_ref()?.disconnect()).then_some(shown)
        })
    }

    /// Returns the exports of a server, with the disks among their clients.
    pub(crate) fn exports(&self, server: &nbd::Server) -> Vec<ExportStatus> {
        let (mut exports, shown) = (server.exports(), self.shown());
        if shown.is_empty() {
            return exports;
        }
        let mut places: BTreeMap<String, &mut ExportStatus> =
            exports.iter_mut().map(|export| (export.name.clone(), export)).collect();
        for ShownDisk { export, in_flight, traffic, .. } in shown {
            if let Some(of) = places.get_mut(&export) {
                of.clients += 1;
                of.in_flight += in_flight;
                of.traffic.add(&traffic);
            }
        }
        exports
    }
}

impl LocalDisk {
    fn close(&self, server_ends: bool, time: Duration) -> Result<(), String> {
        let Some(disk) = self.disk.lock().take() else { return Ok(()) };
        context::blocking("a disk ends", || self.end(disk, server_ends, time))
    }

    fn end(&self, disk: ublk::Disk, server_ends: bool, time: Duration) -> Result<(), String> {
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
    fn leave(&self, disk: ublk::Disk, time: Duration) -> Result<(), String> {
        let name = self.path.display();
        if !disk.leave(time) {
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

    fn unlink(&self) {
        remove_links(&self.path);
    }
}

impl GuestDisk {
    /// Returns the disk, if a guest has it.
    fn shown(&self, export: &str) -> Option<ShownDisk> {
        let Guest { id, who, since } = self.client.lock().clone()?;
        // A disk that ends shows nothing any more.
        let status = self.disk.try_lock()?.as_ref()?.status();
        Some(ShownDisk {
            export: export.to_owned(),
            path: self.socket.clone(),
            guest: Some((id, who)),
            age: time::now().saturating_duration_since(since),
            in_flight: status.in_flight,
            traffic: status.traffic,
        })
    }

    fn is_in_use(&self) -> bool {
        self.disk.lock().as_ref().is_some_and(|disk| disk.status().connected)
    }

    fn close(&self, time: Duration) -> Result<(), String> {
        let Some(disk) = self.disk.lock().take() else { return Ok(()) };
        let report = context::blocking("a guest's disk ends", || disk.stop(time));
        let socket = self.socket.display();
        match &report.flush {
            _ if report.flush_timed_out => {
                Err(format!("{socket}: the flush did not finish in time"))
            }
            Some(Err(error)) => Err(format!("{socket}: the flush failed: {error}")),
            _ if !report.drained => {
                // The guest's record of requests in flight has them: it sends them again.
                tracing::warn!(%socket, "a guest's requests were not answered in time");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn rate(limit: manifest::Limit) -> Rate {
    Rate { requests: limit.iops, bytes: limit.bytes }
}

/// Returns the lower limit of each kind.
fn lower(one: Rate, other: Rate) -> Rate {
    let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
    Rate { requests: least(one.requests, other.requests), bytes: least(one.bytes, other.bytes) }
}

/// Returns the path of the link to an export's disk, or the reason why its name can't be that of a
/// file.
pub(crate) fn link(export: &manifest::Export) -> Result<PathBuf, String> {
    let name = if export.name.is_empty() { &export.device } else { &export.name };
    let is_file = !name.starts_with('.') && !name.contains(['/', '\0']) && name.len() <= 200;
    is_file.then(|| Path::new(LINKS).join(name)).ok_or_else(|| {
        format!(
            "the export '{name}' can't have a link in {LINKS}: a name there has no '/', doesn't \
             begin with a dot, and has at most 200 bytes"
        )
    })
}

/// Returns the path of the file that says that a disk was left with nothing lost. `/dev` is empty
/// after a start of the machine, as the kernel's list of disks is.
fn left_mark(mark: Mark) -> PathBuf {
    Path::new(LINKS).join(format!(".{:016x}.left", mark.word()))
}

/// Removes the links to a disk.
pub fn remove_links(disk: &Path) {
    let links = fs::read_dir(LINKS).into_iter().flatten().flatten().map(|entry| entry.path());
    let leads = |link: &PathBuf| fs::read_link(link).is_ok_and(|target| target == disk);
    links.filter(leads).for_each(|link| _ = fs::remove_file(link));
}

/// Makes the one link to a disk. Leaves a link to another disk alone that is there.
fn point(link: &Path, disk: &Path) -> io::Result<()> {
    fs::create_dir_all(LINKS)?;
    // A former disk had that number.
    remove_links(disk);
    match fs::read_link(link) {
        Ok(other) if other.exists() => {
            let why = format!("the link leads to another disk, {}", other.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Ok(_) => fs::remove_file(link)?,
        // A plain file in its place stays, and fails the next step.
        Err(_) => {}
    }
    std::os::unix::fs::symlink(disk, link)
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
        let file = |name| link(&export(name)).ok().map(|link| link.display().to_string());
        assert_eq!(file("data"), Some("/dev/corewise/data".to_string()));
        assert_eq!(file(""), Some("/dev/corewise/disk0".to_string()));
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
    fn a_guest_keeps_to_the_lower_of_two_limits() {
        let rate = |requests, bytes| Rate { requests, bytes };
        let both = lower(rate(Some(5), None), rate(Some(7), Some(1)));
        assert_eq!(both, rate(Some(5), Some(1)));
    }
}
