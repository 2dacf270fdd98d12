//! Disks: made or taken over, grown, left to the next server, or taken away.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use corewise_blockmq::{BlockDevice, Geometry};
use corewise_export::{Client, Feed, Limiter, Peer, SharedDevice, Traffic};
use corewise_ring::{RingSet, Rings};
use corewise_sync::atomic::Ordering;
use corewise_sync::{Mutex, Parker, time};
use corewise_topology::CpuId;

use crate::abi::{Basic, DeviceInfo, Discard, Params, attribute, control, feature, state};
use crate::control::{Command, Control, PROMPT};
use crate::error::Error;
use crate::left::{Mark, MarkLock, delete, find, resume};
use crate::queue::{DEPTH, MOST_BYTES, Queue, QueueFacts, TagMemory};
use crate::rings::{Descriptors, NewQueue, Port, Served, ServedSender};

/// Time that the kernel has to make a disk, which reads its partition table.
const START: Duration = Duration::from_secs(60);
/// Time for a takeover that failed to let its queues go.
const UNDO: Duration = Duration::from_secs(1);
/// Pause between two tries to open a node that `devtmpfs` or `udev` has to make.
const NODE_PAUSE: Duration = Duration::from_millis(2);
/// CPUs that share a queue.
const CPUS_A_QUEUE: usize = 4;
/// Largest discard and write-zeroes, in sectors: 1 GiB.
const MOST_NOTED: u32 = 1 << 21;
/// Block size in bytes that every kernel takes.
const MOST_BLOCK: u32 = 4096;

/// The abilities of this kernel's ublk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// A disk can change its size while it is in use (Linux 6.16).
    pub grow: bool,
    /// A disk can be handed over without the end of its server (Linux 6.16).
    pub hand_over: bool,
    /// A disk can be taken away only if nobody has it open (Linux 7.0).
    pub safe_stop: bool,
}

impl Abilities {
    /// Asks the kernel. Blocks for a moment.
    ///
    /// # Errors
    /// If there is no ublk that disks can use.
    pub fn probe() -> Result<Abilities, Error> {
        Abilities::of(&mut Control::open(PROMPT)?)
    }

    fn of(control: &mut Control) -> Result<Abilities, Error> {
        let features = control.features().map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::NotAllowed,
            _ => Error::TooOld,
        })?;
        let has = |feature| features & feature != 0;
        if !has(feature::CMD_IOCTL_ENCODE) || !has(feature::USER_RECOVERY_REISSUE) {
            return Err(Error::TooOld);
        }
        Ok(Abilities {
            grow: has(feature::UPDATE_SIZE),
            hand_over: has(feature::QUIESCE),
            safe_stop: has(feature::SAFE_STOP),
        })
    }
}

/// The disks of a program, on rings that other users may share.
pub struct Disks {
    rings: RingSet,
    /// L: is the lock; guards the ports of the rings, once there is a disk.
    ports: Mutex<Option<Arc<Ports>>>,
}

/// The ports of ublk on each ring.
struct Ports {
    ports: Vec<Arc<Port>>,
    rings: Arc<Rings>,
}

/// The options of a disk.
#[derive(Clone, Debug, Default)]
pub struct DiskOptions {
    /// Word by which the next server finds the disk. Two disks of a machine never have the same.
    pub mark: Mark,
    /// Marks of the other disks that the server makes of this device. They may wait meanwhile.
    pub others: Vec<Mark>,
    /// True if the device is new and empty: it is no disk that a former server has left.
    pub is_new: bool,
    /// True if the disk outlives its server: requests wait for the next one. Otherwise they fail.
    pub outlives: bool,
    /// Refuses changes, whatever the device allows.
    pub read_only: bool,
    /// Limits of its requests and bytes a second.
    pub limiters: Vec<Arc<Limiter>>,
    /// True if a server that died may have lost changes that it had acknowledged. Then the first
    /// flush after a takeover fails.
    pub may_lose: bool,
}

impl fmt::Debug for Disks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disks").field("rings", &self.rings).finish_non_exhaustive()
    }
}

impl Disks {
    /// Prepares disks on these rings. Nothing is started yet.
    pub fn new(rings: &RingSet) -> Disks {
        Disks { rings: rings.clone(), ports: Mutex::new(None) }
    }

    /// Makes a disk of a device, or takes over the one with the same mark that a former server has
    /// left. Blocks, since the kernel reads the disk's partition table.
    ///
    /// # Errors
    /// If the kernel has no ublk or refuses the disk, or if the disk that was left is not like the
    /// device.
    pub fn add(&self, shared: &Arc<SharedDevice>, options: DiskOptions) -> Result<Disk, Error> {
        let _lock = MarkLock::take(options.mark)?;
        let mut control = Control::open(START)?;
        let abilities = Abilities::of(&mut control)?;
        let geometry = shared.device().geometry();
        let params = params(&geometry, options.read_only)?;
        let left = find(&mut control, &options)?;
        let (info, taken_over) = match left {
            Some(info) => {
                resume(&mut control, &info, &params)?;
                (info, true)
            }
            None => {
                (make(&mut control, &options, abilities, self.rings.cpus().max(1), params)?, false)
            }
        };
        let disk = info.device;
        let (start, what) = match taken_over {
            true => (control::END_USER_RECOVERY, "hand over"),
            false => (control::START_DEV, "start"),
        };
        let pid = u64::from(std::process::id());
        let mut queues = Vec::new();
        let served = self
            .serve(&mut control, &info, shared, &options, taken_over, &mut queues)
            .and_then(|()| {
                let started = control.plain(Command::new(start, disk).data(pid));
                started.map(drop).map_err(Error::command(what, disk))
            });
        let (shared, mark) = (Arc::clone(shared), options.mark);
        let this = Disk { number: disk, mark, abilities, shared, queues, taken_over };
        if let Err(error) = served {
            match taken_over {
                // The kernel can't take back what the threads fetch before they end, and it may
                // still end the takeover: no request may go to the device then.
                true => _ = this.leave(UNDO),
                false => {
                    let _ = Control::open(PROMPT)
                        .map(|mut control| control.plain(Command::new(control::DEL_DEV, disk)));
                }
            }
            return Err(error);
        }
        // The disk is served, so an error here is none of the disk's.
        if let Err(error) = this.grow() {
            tracing::warn!(disk, %error, "the disk keeps its former size");
        }
        Ok(this)
    }

    /// Hands the queues of a disk to the threads of the rings, and adds them to `queues`.
    fn serve(
        &self,
        control: &mut Control,
        info: &DeviceInfo,
        shared: &Arc<SharedDevice>,
        options: &DiskOptions,
        taken_over: bool,
        queues: &mut Vec<DiskQueue>,
    ) -> Result<(), Error> {
        let node = open_node(info.device)
            .map_err(Error::command("open the control file of", info.device))?;
        let file = Arc::new(OwnedFd::from(node));
        let ports = self.ports()?;
        for id in 0..info.queues {
            let port = ports.of_queue(control, info, id);
            let descriptors = Descriptors::map(&file, id, info.depth)
                .map_err(Error::command("map the requests of", info.device))?;
            let memory = TagMemory::map(info.depth, info.max_bytes)
                .map_err(Error::command("map the memory of", info.device))?;
            let facts = Arc::new(QueueFacts::default());
            let served = Arc::new(Served::default());
            let client = Client::new(shared, Peer::Kernel.into(), Waker::from(Arc::clone(port)));
            if taken_over && options.may_lose {
                client.owe_a_failure();
            }
            let client = Arc::new(client);
            let feed = Feed::new(Arc::clone(&client), options.limiters.clone());
            let (theirs, now) = (Arc::clone(&facts), time::now());
            let to = Arc::clone(port);
            let make = move |number| {
                let deliver = Arc::new(move |slot| to.deliver(slot));
                Queue::new(number, memory, feed, deliver, theirs, now)
            };
            port.serve(NewQueue {
                make: Box::new(make),
                file: Arc::clone(&file),
                id,
                descriptors,
                served: ServedSender(Arc::clone(&served)),
            });
            queues.push(DiskQueue { port: Arc::clone(port), served, facts, client });
        }
        if queues.iter().any(|queue| queue.served.number().is_none()) {
            return Err(Error::Thread(io::Error::other("ublk has panicked on one of them")));
        }
        Ok(())
    }

    /// Returns the ports, and starts the rings if need be.
    fn ports(&self) -> Result<Arc<Ports>, Error> {
        let mut ports = self.ports.lock();
        if let Some(ports) = &*ports {
            return Ok(Arc::clone(ports));
        }
        let rings = self.rings.start().map_err(Error::Thread)?;
        let made = Ports { ports: rings.ports().map(Port::open).collect(), rings };
        Ok(Arc::clone(ports.insert(Arc::new(made))))
    }
}

impl Ports {
    /// Returns the port of a queue: that of the ring whose CPUs the kernel gives the queue.
    fn of_queue(&self, control: &mut Control, info: &DeviceInfo, queue: u16) -> &Arc<Port> {
        let bits = control.affinity(info.device, queue).unwrap_or([0; 128]);
        let ring = cpus(&bits).find_map(|cpu| self.rings.of_cpu(cpu));
        &self.ports[ring.unwrap_or(queue.into()) % self.ports.len()]
    }
}

/// Returns the CPUs of an affinity's bits.
fn cpus(bits: &[u8]) -> impl Iterator<Item = CpuId> + '_ {
    let is_set = |n: &usize| bits[n / 8] & 1 << (n % 8) != 0;
    (0..bits.len() * 8).filter(is_set).map(|n| CpuId::new(n as u32))
}

/// Makes a new device, which has no disk yet.
fn make(
    control: &mut Control,
    options: &DiskOptions,
    abilities: Abilities,
    cpus: usize,
    params: Params,
) -> Result<DeviceInfo, Error> {
    let mut features = feature::CMD_IOCTL_ENCODE;
    if options.outlives {
        features |= feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
        features |= if abilities.hand_over { feature::QUIESCE } else { 0 };
    }
    features |= if abilities.grow { feature::UPDATE_SIZE } else { 0 };
    features |= if abilities.safe_stop { feature::SAFE_STOP } else { 0 };
    let info = DeviceInfo {
        queues: cpus.div_ceil(CPUS_A_QUEUE) as u16,
        depth: DEPTH,
        max_bytes: MOST_BYTES,
        device: u32::MAX,
        server: -1,
        features,
        mark: options.mark.word(),
        ..DeviceInfo::default()
    };
    let info = control.add(info).map_err(|error| Error::Command {
        what: "make a disk",
        disk: None,
        error,
    })?;
    control.set_params(info.device, params).map_err(|error| {
        let _ = control.plain(Command::new(control::DEL_DEV, info.device));
        Error::command("set the limits of", info.device)(error)
    })?;
    Ok(info)
}

/// Opens the character device of a disk, once its node is there.
fn open_node(disk: u32) -> io::Result<File> {
    let path = format!("/dev/ublkc{disk}");
    let deadline = time::now() + PROMPT;
    loop {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOENT | libc::EBUSY | libc::EACCES)
                ) && time::now() < deadline =>
            {
                Parker::new().park_timeout(NODE_PAUSE);
            }
            result => return result,
        }
    }
}

/// Returns size and limits of a disk, from those of its device.
fn params(geometry: &Geometry, read_only: bool) -> Result<Params, Error> {
    let block = geometry.block_size;
    if block > MOST_BLOCK {
        return Err(Error::BlockSize(block));
    }
    if geometry.size < u64::from(block) {
        return Err(Error::Empty);
    }
    let shift = |bytes: u32| bytes.clamp(block, MOST_BLOCK.max(block)).ilog2() as u8;
    let set = |attribute, is_set| if is_set { attribute } else { 0 };
    let read_only = read_only || geometry.read_only;
    let basic = Basic {
        attributes: set(attribute::READ_ONLY, read_only)
            | set(attribute::ROTATIONAL, geometry.rotational)
            | set(attribute::VOLATILE_CACHE, geometry.can_flush)
            | set(attribute::FUA, geometry.can_flush && geometry.can_fua),
        logical_shift: block.ilog2() as u8,
        physical_shift: shift(geometry.physical_block),
        optimal_shift: geometry.preferred.max(block).ilog2() as u8,
        minimal_shift: shift(geometry.physical_block),
        max_sectors: MOST_BYTES / 512,
        chunk_sectors: 0,
        sectors: geometry.size / 512,
        boundary_mask: 0,
    };
    let noted = |can| if can && !read_only { MOST_NOTED } else { 0 };
    let discard = Discard {
        alignment: 0,
        granularity: geometry.physical_block.max(block),
        max_discard_sectors: noted(geometry.can_discard),
        max_zeroes_sectors: noted(geometry.can_write_zeroes),
        max_segments: 1,
        reserved: 0,
    };
    let has_discard = discard.max_discard_sectors > 0;
    Ok(Params {
        length: Params::LENGTH,
        types: Params::BASIC | if has_discard { Params::DISCARD } else { 0 },
        basic,
        discard,
    })
}

struct DiskQueue {
    port: Arc<Port>,
    served: Arc<Served>,
    facts: Arc<QueueFacts>,
    client: Arc<Client>,
}

impl Drop for DiskQueue {
    fn drop(&mut self) {
        // If the disk has left its device before, this does nothing.
        self.client.leave(false);
    }
}

/// A disk of this machine: `/dev/ublkbN`.
///
/// A disk that is dropped is served until its threads end. [`Disk::remove`] takes it away, and
/// [`Disk::leave`] leaves it to the next server.
pub struct Disk {
    number: u32,
    mark: Mark,
    abilities: Abilities,
    shared: Arc<SharedDevice>,
    queues: Vec<DiskQueue>,
    taken_over: bool,
}

/// The result of taking a disk away if nobody has it open.
#[derive(Debug)]
pub enum Removal {
    /// Nobody had it open.
    Gone,
    /// Somebody has it open.
    InUse(Disk),
    /// The kernel can't tell (before Linux 7.0).
    Unknown(Disk),
}

/// One disk, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskStatus {
    /// Requests that the kernel has delivered and that aren't answered.
    pub in_flight: u64,
    /// Counters of its requests.
    pub traffic: Traffic,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Disk {
    /// Returns the number in its path.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the path of the disk.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.number))
    }

    /// Returns true if a former server had made it.
    pub fn was_taken_over(&self) -> bool {
        self.taken_over
    }

    /// Returns counters and load.
    pub fn status(&self) -> DiskStatus {
        let mut status = DiskStatus { in_flight: 0, traffic: Traffic::default() };
        for queue in &self.queues {
            status.in_flight += queue.facts.in_flight.load(Ordering::Relaxed);
            status.traffic.add(&queue.facts.counts.read());
        }
        status
    }

    /// Returns true if somebody else has taken the disk away: the kernel has given up all tags.
    /// Then its number may be that of another disk.
    pub fn was_taken_away(&self) -> bool {
        self.queues.iter().all(|queue| queue.facts.was_given_up())
    }

    /// Gives the disk the size of its device, if that has grown and the kernel can. Returns true if
    /// the disk has the device's size. Blocks for a moment.
    ///
    /// # Errors
    /// If the kernel refuses the size.
    pub fn grow(&self) -> Result<bool, Error> {
        if self.was_taken_away() {
            return Ok(false);
        }
        let mut control = Control::open(PROMPT)?;
        let wanted = self.shared.device().geometry().size / 512;
        let params =
            control.params(self.number).map_err(Error::command("describe", self.number))?;
        if params.basic.sectors == wanted {
            return Ok(true);
        }
        if !self.abilities.grow {
            return Ok(false);
        }
        let command = Command::new(control::UPDATE_SIZE, self.number).data(wanted);
        control.plain(command).map_err(Error::command("grow", self.number))?;
        Ok(true)
    }

    /// Takes the disk away. Its users get errors from then on. Requests that it has are answered
    /// first, within `time`. Blocks.
    ///
    /// # Errors
    /// If the requests aren't answered in time, or the kernel refuses. The disk is being taken away
    /// all the same.
    pub fn remove(self, time: Duration) -> Result<(), Error> {
        let number = self.number;
        let mut control = Control::open(time)?;
        if self.was_taken_away() {
            return self.forget(control);
        }
        let stopped = control.plain(Command::new(control::STOP_DEV, number));
        if let Err(error) = stopped {
            if error.kind() == io::ErrorKind::TimedOut {
                // The kernel stops it once the requests are answered, and then deletes it.
                let _ = Control::open(NODE_PAUSE).map(|mut late| delete(&mut late, number));
            }
            return Err(Error::command("stop", number)(error));
        }
        self.delete(control)
    }

    /// Takes the disk away if nobody has it open.
    ///
    /// # Errors
    /// The errors are those of [`Disk::remove`].
    pub fn remove_unused(self, time: Duration) -> Result<Removal, Error> {
        if !self.abilities.safe_stop {
            return Ok(Removal::Unknown(self));
        }
        let mut control = Control::open(time)?;
        if self.was_taken_away() {
            return self.forget(control).map(|()| Removal::Gone);
        }
        match control.plain(Command::new(control::TRY_STOP_DEV, self.number)) {
            Ok(_) => self.delete(control).map(|()| Removal::Gone),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(Removal::InUse(self)),
            Err(error) => Err(Error::command("stop", self.number)(error)),
        }
    }

    /// Deletes a device that somebody else has stopped, if it is still there.
    fn forget(self, mut control: Control) -> Result<(), Error> {
        let info = control.info(self.number);
        let is_ours =
            |info: &DeviceInfo| info.mark == self.mark.word() && info.state == state::DEAD;
        match info.is_ok_and(|info| is_ours(&info)) {
            true => self.delete(control),
            false => {
                self.queues.iter().for_each(|queue| queue.client.leave(true));
                Ok(())
            }
        }
    }

    /// Deletes a device whose disk has been stopped.
    fn delete(self, mut control: Control) -> Result<(), Error> {
        let number = self.number;
        for queue in &self.queues {
            queue.client.leave(queue.facts.gone.wait_timeout(control.left()));
        }
        drop(self);
        delete(&mut control, number)
    }

    /// Leaves the disk to the next server: no further request goes to the device, and those that it
    /// has are answered, within `time`. The kernel keeps the others. Returns true if all were
    /// answered. The disk is free for the next server once this process ends, or at once if the
    /// kernel [can hand it over](Abilities::hand_over). Blocks.
    pub fn leave(self, time: Duration) -> bool {
        for queue in &self.queues {
            if let Some(number) = queue.served.number() {
                queue.port.leave(number, &queue.facts);
            }
        }
        let until = time::now().checked_add(time);
        let left = || until.map_or(time, |until| until.saturating_duration_since(time::now()));
        let all = self.queues.iter().filter(|queue| queue.facts.quiet.wait_timeout(left())).count();
        let is_quiet = all == self.queues.len();
        self.queues.iter().for_each(|queue| queue.client.leave(is_quiet));
        if is_quiet && self.abilities.hand_over && !self.was_taken_away() {
            let quiesced = Control::open(left().max(NODE_PAUSE))
                .map_err(|error| error.to_string())
                .and_then(|mut control| {
                    let command = Command::new(control::QUIESCE_DEV, self.number).data(1000);
                    control.plain(command).map_err(|error| error.to_string())
                });
            if let Err(error) = quiesced {
                tracing::info!(
                    disk = self.number,
                    error,
                    "the disk isn't handed over before this process ends"
                );
            }
        }
        is_quiet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_the_limits_of_its_device() {
        let geometry = Geometry::new(1 << 20);
        let writable = params(&geometry, false).unwrap();
        assert_eq!(writable.basic.sectors, 2048);
        assert_eq!(writable.basic.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
        assert_eq!((writable.basic.logical_shift, writable.types), (9, 3));
        assert_eq!(writable.discard.max_discard_sectors, MOST_NOTED);
        let read_only = params(&geometry, true).unwrap();
        assert!(read_only.basic.attributes & attribute::READ_ONLY != 0);
        assert_eq!((read_only.types, read_only.discard.max_zeroes_sectors), (Params::BASIC, 0));
        let plain = Geometry {
            can_flush: false,
            rotational: true,
            block_size: 4096,
            physical_block: 4096,
            ..geometry
        };
        let plain = params(&plain, false).unwrap().basic;
        assert_eq!(
            (plain.attributes, plain.logical_shift, plain.physical_shift),
            (attribute::ROTATIONAL, 12, 12)
        );
    }

    #[test]
    fn a_device_that_no_disk_can_be_is_refused() {
        let large = Geometry { block_size: 8192, ..Geometry::new(1 << 20) };
        assert!(matches!(params(&large, false), Err(Error::BlockSize(8192))));
        assert!(matches!(params(&Geometry::new(0), false), Err(Error::Empty)));
    }

    #[test]
    fn the_bits_of_an_affinity_are_cpus() {
        let cpus: Vec<_> = cpus(&[0b101, 0, 1]).map(CpuId::index).collect();
        assert_eq!(cpus, [0, 2, 16]);
    }
}
