//! Front ends of exports beside NBD: disks of this machine and of virtual machines.
//!
//! An export with `ublk` is a disk of this machine, which outlives the server if it is in use. An
//! export with `vhost_user` is a virtio disk on that socket. Its frontend reconnects to the next
//! server by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::export::{Access, Identity, Rate, SharedDevice, SocketAccess};
use corewise::nbd::{self, ClientEvent, ExportStatus};
use corewise::ring::RingSet;
use corewise::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use corewise::sync::{Mutex, context, time};
use corewise::ublk::{self, Disks};
use corewise::vhost::{self, FrontendEvent};

use super::links::{self, DiskRecord};
use super::local_disk::{DiskServer, LocalDisk};
use super::volume::Volume;
use crate::cleanup::Cleanup;
use crate::control::health::WaitingDisk;
use crate::control::served::ShownDisk;
use crate::manifest::{self, NodeAccess, ResolvedAccess, UblkDisk};
use crate::report::{DiskEvent, Report};

/// Number of checks of the access to disks between two looks for disks that wait.
const LOOK: u32 = 10;

/// The front ends of all exports.
pub(crate) struct FrontEnds {
    disks: Disks,
    /// The NBD server, which gives clients their numbers and their memory.
    clients: Arc<nbd::Server>,
    /// L: is the lock; guards the server of virtual machines, which is made with its first disk.
    guests: Mutex<Option<Arc<vhost::Server>>>,
    /// The sockets that this server has bound.
    sockets: Arc<Cleanup>,
    /// Text that distinguishes this server from others on the machine: its manifest's path.
    server: String,
    report: Report,
    /// A: true once the server ends: disks in use stay. Release and Acquire.
    server_ends: AtomicBool,
    /// L: is the lock; guards the names of the exports that are disks of this machine, by device.
    expected: Mutex<BTreeMap<String, Vec<String>>>,
    /// L: is the lock; guards the front ends, by export.
    open: Mutex<BTreeMap<String, Arc<OpenExport>>>,
    /// A: number of checks so far. Relaxed: one thread at a time counts.
    ticks: AtomicU32,
    /// L: is the lock, a leaf; guards the disks of this manifest that wait without a server.
    waiting: Mutex<Vec<WaitingDisk>>,
}

/// The front ends of one export.
#[derive(Clone)]
struct OpenExport {
    /// Device of the manifest.
    device: String,
    local: Option<Arc<LocalDisk>>,
    guest: Option<Arc<GuestDisk>>,
    since: Instant,
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
        sockets: Arc<Cleanup>,
        report: Report,
    ) -> FrontEnds {
        FrontEnds {
            disks: Disks::new(rings),
            clients,
            guests: Mutex::default(),
            sockets,
            server,
            report,
            server_ends: AtomicBool::new(false),
            expected: Mutex::default(),
            open: Mutex::default(),
            ticks: AtomicU32::new(0),
            waiting: Mutex::default(),
        }
    }

    /// Announces the exports of a manifest, before any of them is opened.
    pub(crate) fn expect(&self, exports: &[manifest::Export]) {
        let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for export in exports.iter().filter(|export| export.ublk.is_some()) {
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
        let opened = self.replace(export, volume, Duration::ZERO);
        if opened.is_err() {
            // One may be open.
            let _ = self.close(&export.name, Duration::ZERO);
        }
        opened.map(drop)
    }

    /// Opens the front ends that an export asks for and lacks. Ends those that it has and doesn't
    /// ask for, within `time`. Returns a note about a disk that ends later. Blocks.
    pub(crate) fn replace(
        &self,
        export: &manifest::Export,
        volume: &Volume,
        time: Duration,
    ) -> Result<Option<String>, String> {
        let had = self.get(&export.name);
        if had.is_none() && export.ublk.is_none() && export.vhost_user.is_none() {
            return Ok(None);
        }
        let mut open = had.as_deref().cloned().unwrap_or_else(|| OpenExport {
            device: export.device.clone(),
            local: None,
            guest: None,
            since: time::now(),
        });
        let changed = self.change(export, volume, time, &mut open);
        let mut all = self.open.lock();
        match open.local.is_none() && open.guest.is_none() {
            true => all.remove(&export.name),
            false => all.insert(export.name.clone(), Arc::new(open)),
        };
        changed
    }

    fn change(
        &self,
        export: &manifest::Export,
        volume: &Volume,
        time: Duration,
        open: &mut OpenExport,
    ) -> Result<Option<String>, String> {
        let shared = volume.shared().map_err(|error| error.to_string())?;
        let guest = |why| format!("vhost_user: {why}");
        let stays = open.guest.as_ref().filter(|guest| !guest.ends_with(export));
        if let Some((guest_disk, at)) = stays.zip(export.vhost_user.as_ref()) {
            guest_disk.set_access(&at.value.access).map_err(guest)?;
        } else {
            open.guest.take().map_or(Ok(()), |guest| guest.close(time))?;
            open.guest = self.open_guest(export, volume, &shared).map_err(guest)?;
        }
        let in_words = |why| format!("ublk: {why}");
        match (&open.local, &export.ublk) {
            (Some(local), Some(wanted)) => local.set_access(wanted).map_err(in_words)?,
            (Some(_), None) => {
                let local = open.local.take();
                return local.map_or(Ok(None), |local| local.close(false, time));
            }
            (None, Some(wanted)) => {
                let local = self.open_local(export, wanted, volume, &shared).map_err(in_words)?;
                open.local = Some(local);
            }
            (None, None) => {}
        }
        Ok(None)
    }

    /// Returns the path, or the socket, of a disk in use that would end if the export became this
    /// one.
    pub(crate) fn ends_in_use(&self, export: &manifest::Export) -> Option<PathBuf> {
        let open = self.get(&export.name)?;
        let local = open.local.as_ref().filter(|_| export.ublk.is_none());
        if let Some(local) = local.filter(|local| local.is_in_use()) {
            return Some(local.path.clone());
        }
        let guest = open.guest.as_ref().filter(|guest| guest.ends_with(export));
        guest.filter(|guest| guest.is_in_use()).map(|guest| guest.socket.clone())
    }

    fn open_guest(
        &self,
        export: &manifest::Export,
        volume: &Volume,
        shared: &Arc<SharedDevice>,
    ) -> Result<Option<Arc<GuestDisk>>, String> {
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
            [export.limit, export.client_limit].into_iter().flatten().map(Rate::from).reduce(lower);
        let access = Access { uids: export.allow_uids.clone(), names: None };
        let client = Arc::new(Mutex::new(None));
        let options = vhost::Options::default()
            .socket(socket_access(&at.value.access)?)
            .read_only(export.read_only)
            .may_lose(volume.may_lose())
            .rate(rate.unwrap_or_default())
            .access(access)
            .memory_pool(self.clients.memory_pool())
            .observer(self.guest_observer(export.name.clone(), Arc::clone(&client)));
        let disk = guests.listen(&at.value.path, Arc::clone(shared), options);
        let disk = disk.map_err(|error| self.words(error))?;
        let (disk, socket) = (Mutex::new(Some(disk)), at.value.path.clone());
        Ok(Some(Arc::new(GuestDisk { disk, socket, client })))
    }

    /// Returns the reason in words why a socket can't be bound: this server may have it itself.
    fn words(&self, error: vhost::Error) -> String {
        match &error {
            vhost::Error::SocketInUse(path) if self.sockets.has_bound(path) => format!(
                "{}: this server itself listens on this socket. Give the export one of its own",
                path.display()
            ),
            _ => error.to_string(),
        }
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
        wanted: &UblkDisk,
        volume: &Volume,
        shared: &Arc<SharedDevice>,
    ) -> Result<Arc<LocalDisk>, String> {
        let names = self.expected.lock().get(&export.device).cloned().unwrap_or_default();
        let server = DiskServer { disks: &self.disks, place: &self.server, report: &self.report };
        LocalDisk::open(&server, (export, wanted), volume, shared, &names).map(Arc::new)
    }

    fn get(&self, export: &str) -> Option<Arc<OpenExport>> {
        self.open.lock().get(export).cloned()
    }

    /// Returns the front ends of all exports, with the exports' names.
    fn all(&self) -> Vec<(String, Arc<OpenExport>)> {
        let open = self.open.lock();
        open.iter().map(|(name, open)| (name.clone(), Arc::clone(open))).collect()
    }

    /// Returns the path of an export's disk of this machine, and the socket of its disk for virtual
    /// machines.
    pub(crate) fn paths(&self, export: &str) -> [Option<PathBuf>; 2] {
        let open = self.get(export);
        let local = open.as_ref().and_then(|open| Some(open.local.as_ref()?.path.clone()));
        [local, open.and_then(|open| Some(open.guest.as_ref()?.socket.clone()))]
    }

    /// Returns the path of an export's disk of this machine, if it has one that something uses.
    pub(crate) fn in_use(&self, export: &str) -> Option<PathBuf> {
        let open = self.get(export)?;
        let local = open.local.as_ref()?;
        local.is_in_use().then(|| local.path.clone())
    }

    /// Returns true if a virtual machine uses the export.
    pub(crate) fn has_guest(&self, export: &str) -> bool {
        self.get(export)
            .is_some_and(|open| open.guest.as_ref().is_some_and(|guest| guest.is_in_use()))
    }

    /// Ends the front ends of an export. At the server's end a disk of this machine that is in use
    /// stays for the next server. Returns a note about a disk that ends later. Blocks.
    pub(crate) fn close(&self, export: &str, time: Duration) -> Result<Option<String>, String> {
        let Some(open) = self.get(export) else { return Ok(None) };
        let server_ends = self.server_ends.load(Ordering::Acquire);
        let guest = open.guest.as_ref().map_or(Ok(()), |guest| guest.close(time));
        let local = open.local.as_ref().map_or(Ok(None), |local| local.close(server_ends, time));
        self.open.lock().remove(export);
        guest.and(local)
    }

    /// Keeps the access to the disks of this machine as the manifest wants it, and looks for disks
    /// of this manifest that wait without a server. It is called once a second while the server
    /// serves, and may block for a moment.
    pub(crate) fn tick(&self) {
        let local = || -> Vec<_> {
            self.open.lock().values().filter_map(|open| open.local.clone()).collect()
        };
        local().iter().for_each(|local| local.tick());
        if self.ticks.fetch_add(1, Ordering::Relaxed) % LOOK == 0 {
            context::blocking("disks are listed", || self.look_for_waiting(&local()));
        }
    }

    fn look_for_waiting(&self, own: &[Arc<LocalDisk>]) {
        let is_own = |number| own.iter().any(|local| local.is_number(number));
        // A kernel without ublk has none.
        let found = ublk::list(|number| !is_own(number)).unwrap_or_default();
        let waiting: Vec<_> = found
            .into_iter()
            .filter(|disk| disk.waits)
            .filter_map(|disk| {
                let record = DiskRecord::of(disk.number, disk.mark)?;
                let is_ours = record.manifest == self.server;
                let disk = links::path(disk.number).display().to_string();
                is_ours.then_some(WaitingDisk { disk, export: record.export })
            })
            .collect();
        let before = std::mem::replace(&mut *self.waiting.lock(), waiting.clone());
        for WaitingDisk { disk, export } in waiting.iter().filter(|one| !before.contains(one)) {
            tracing::warn!(disk, export, "a disk of this manifest waits, and no export is it");
            self.report.disk(export, Path::new(disk), DiskEvent::Waits);
        }
    }

    /// Returns the disks of this manifest that waited without a server at the last look.
    pub(crate) fn waiting(&self) -> Vec<WaitingDisk> {
        self.waiting.lock().clone()
    }

    /// Gives disks of a device that has grown its new size. Returns those that keep the old one.
    pub(crate) fn grown(&self, device: &str) -> Vec<PathBuf> {
        let open: Vec<_> =
            self.open.lock().values().filter(|open| open.device == device).cloned().collect();
        for guest in open.iter().filter_map(|open| open.guest.as_ref()) {
            // A frontend that isn't connected learns of the size when it connects.
            guest.disk.lock().as_ref().map(vhost::Disk::resized);
        }
        let local = open.iter().filter_map(|open| open.local.as_ref());
        local.filter(|local| !local.grow()).map(|local| local.path.clone()).collect()
    }

    /// Returns the disks, by export: those of this machine, and those that virtual machines use.
    pub(crate) fn shown(&self) -> Vec<ShownDisk> {
        let shown = |(export, open): (String, Arc<OpenExport>)| {
            let age = time::now().saturating_duration_since(open.since);
            // A disk that ends shows nothing any more.
            let local = open.local.as_ref().and_then(|local| {
                let status = local.status()?;
                let (in_flight, traffic) = (status.in_flight, status.traffic);
                let (path, guest) = (local.path.clone(), None);
                Some(ShownDisk { export: export.clone(), path, guest, age, in_flight, traffic })
            });
            [local, open.guest.as_ref().and_then(|guest| guest.shown(&export))]
        };
        self.all().into_iter().flat_map(shown).flatten().collect()
    }

    /// Ends the connection of the guest that has this number. Returns what it was.
    pub(crate) fn disconnect(&self, client: u64) -> Option<ShownDisk> {
        self.all().iter().find_map(|(export, open)| {
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

    /// Returns true if the disk ends when its export becomes this one.
    fn ends_with(&self, export: &manifest::Export) -> bool {
        export.vhost_user.as_ref().is_none_or(|at| at.value.path != self.socket)
    }

    /// Sets the access to the socket.
    fn set_access(&self, wanted: &NodeAccess) -> Result<(), String> {
        let access = socket_access(wanted)?;
        let set = self.disk.lock().as_ref().map_or(Ok(()), |disk| disk.set_access(&access));
        set.map_err(|error| format!("{}: {error}", self.socket.display()))
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

/// Looks the names of an access up. May block.
fn socket_access(wanted: &NodeAccess) -> Result<SocketAccess, String> {
    let ResolvedAccess { uid: owner, gid: group, mode } = wanted.resolve()?;
    Ok(SocketAccess { owner, group, mode })
}

/// Returns the lower limit of each kind.
fn lower(one: Rate, other: Rate) -> Rate {
    let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
    Rate { requests: least(one.requests, other.requests), bytes: least(one.bytes, other.bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_keeps_to_the_lower_of_two_limits() {
        let rate = |requests, bytes| Rate { requests, bytes };
        let both = lower(rate(Some(5), None), rate(Some(7), Some(1)));
        assert_eq!(both, rate(Some(5), Some(1)));
    }
}
