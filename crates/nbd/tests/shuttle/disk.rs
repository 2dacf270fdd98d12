//! Disks that outlive the servers over them. They have a cache, finish requests late and in any
//! order, and lose, tear, misdirect and lie on demand. One thread is the interrupt of all of them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewise_blockmq::{Dispatch, Driver, Geometry, Info, IoError, IoErrorKind, Op, Started};
use corewise_sync::model::choose;
use corewise_sync::{Condvar, Mutex};
use rustix::net::{Shutdown, shutdown};

use crate::event_counts::{EventCounts, count, say};

pub(crate) const SECTOR: usize = 512;
/// Size of a disk in bytes. If it is a leg of a mirror, half of it is for the record; the other
/// half is for data.
pub(crate) const DISK: u64 = 128 << 10;
pub(crate) const DATA: usize = 64 << 10;

/// The requests that a disk fails in a life of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Errors {
    None,
    /// One of this many.
    Some(u64),
    /// All after this many.
    After(u64),
}

/// The rest of a write that failed, or was on its way in a crash.
#[derive(Clone, Copy, Debug)]
enum Left {
    Nothing,
    All,
    /// Some of its sectors.
    Torn,
}

fn one_in(n: u64) -> bool {
    choose(n) == 0
}

pub(crate) struct Disk {
    name: &'static str,
    /// Contents that reads return.
    pub(crate) now: Vec<u8>,
    /// Contents that surely survive a power failure.
    pub(crate) durable: Vec<u8>,
    /// Sectors in which the two may differ.
    unflushed: BTreeSet<usize>,
    can_fua: bool,
    errors: Errors,
    /// True if flushes succeed without effect.
    pub(crate) lies: bool,
    /// True if writes go elsewhere.
    pub(crate) misdirects: bool,
}

impl Disk {
    pub(crate) fn new(name: &'static str) -> Disk {
        let zeroes = vec![0; DISK as usize];
        Disk {
            name,
            now: zeroes.clone(),
            durable: zeroes,
            unflushed: BTreeSet::new(),
            can_fua: choose(2) == 0,
            errors: Errors::None,
            lies: false,
            misdirects: false,
        }
    }

    /// Returns true if this request fails.
    fn fails(&mut self) -> bool {
        match &mut self.errors {
            Errors::None => false,
            Errors::Some(n) => one_in(*n),
            Errors::After(0) => true,
            Errors::After(left) => {
                *left -= 1;
                false
            }
        }
    }

    fn flush(&mut self, sectors: impl Iterator<Item = usize>) {
        for sector in sectors {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            self.durable[range.clone()].copy_from_slice(&self.now[range]);
            self.unflushed.remove(&sector);
        }
    }

    /// Changes `range` as `rq` says, as far as `left` says.
    fn change(&mut self, rq: &Started, range: Range<usize>, left: Left) {
        let mut bytes = vec![0; range.len()];
        if rq.op() == Op::Write {
            rq.copy_to(&mut bytes);
        }
        for (n, sector) in (range.start / SECTOR..range.end / SECTOR).enumerate() {
            let is_done = match left {
                Left::Nothing => false,
                Left::All => true,
                Left::Torn => one_in(2),
            };
            if is_done {
                let at = sector * SECTOR;
                self.now[at..at + SECTOR].copy_from_slice(&bytes[n * SECTOR..(n + 1) * SECTOR]);
                self.unflushed.insert(sector);
            }
        }
    }

    fn perform(&mut self, rq: &mut Started, counts: &EventCounts) -> Result<(), IoError> {
        let fails = self.fails();
        let left = match fails {
            true => [Left::Nothing, Left::All, Left::Torn][choose(3) as usize],
            false => Left::All,
        };
        let mut range = rq.offset() as usize..(rq.offset() + rq.len()) as usize;
        match rq.op() {
            Op::Read if fails => {}
            Op::Read => drop(rq.put(&self.now[range])),
            Op::Flush if self.lies && one_in(2) => count(&counts.lies),
            Op::Flush => {
                if !fails || one_in(2) {
                    self.flush(self.unflushed.clone().into_iter());
                }
            }
            Op::Write | Op::WriteZeroes | Op::Discard => {
                if self.misdirects && one_in(8) {
                    count(&counts.lies);
                    let places = (self.now.len() - range.len()) / SECTOR + 1;
                    let at = choose(places as u64) as usize * SECTOR;
                    range = at..at + range.len();
                }
                self.change(rq, range.clone(), left);
                let is_kept = self.lies && one_in(2);
                if rq.flags().fua && self.can_fua && !fails && !is_kept {
                    self.flush(range.start / SECTOR..range.end / SECTOR);
                }
            }
            _ => return Err(IoError::new(IoErrorKind::NotSupported)),
        }
        if fails { Err(IoError::new(IoErrorKind::Io(5))) } else { Ok(()) }
    }

    /// Fails the power: unflushed changes are lost, or not.
    fn power_failure(&mut self) {
        let how = choose(3);
        for sector in std::mem::take(&mut self.unflushed) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            match how == 0 || (how == 1 && one_in(2)) {
                true => self.now[range.clone()].copy_from_slice(&self.durable[range]),
                false => self.durable[range.clone()].copy_from_slice(&self.now[range]),
            }
        }
    }
}

/// A request that a disk has accepted.
struct Taken {
    disk: usize,
    rq: Started,
    /// Result of the request, which isn't reported yet.
    done: Option<Result<(), IoError>>,
}

pub(crate) struct World {
    pub(crate) disks: Vec<Disk>,
    taken: Vec<Taken>,
    /// True once the server was killed: nothing reaches a disk any more.
    pub(crate) dead: bool,
    /// Number of requests to disks until the server is killed.
    crash_in: Option<u64>,
    /// Sockets of the clients.
    sockets: Vec<OwnedFd>,
    closed: bool,
}

impl World {
    pub(crate) fn new(disks: Vec<Disk>) -> World {
        let (taken, sockets) = (Vec::new(), Vec::new());
        World { disks, taken, dead: false, crash_in: None, sockets, closed: false }
    }

    /// Counts a request, and runs a due crash. All replies that were sent before it arrive, and
    /// none that comes later.
    fn tick(&mut self) {
        self.crash_in = match self.crash_in {
            Some(0) => return self.kill(),
            left => left.map(|left| left - 1),
        }
    }

    pub(crate) fn kill(&mut self) {
        if self.dead {
            return;
        }
        say(|| "killed".into());
        self.dead = true;
        for Taken { disk, rq, done } in &self.taken {
            let changes = matches!(rq.op(), Op::Write | Op::WriteZeroes | Op::Discard);
            if done.is_none() && changes {
                let left = [Left::Nothing, Left::All, Left::Torn][choose(3) as usize];
                let range = rq.offset() as usize..(rq.offset() + rq.len()) as usize;
                self.disks[*disk].change(rq, range, left);
            }
        }
        for socket in &self.sockets {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

/// The disks as one life of the server sees them.
pub(crate) struct Machine {
    pub(crate) world: Mutex<World>,
    more: Condvar,
    counts: &'static EventCounts,
}

impl Machine {
    pub(crate) fn new(world: World, counts: &'static EventCounts) -> Arc<Machine> {
        Arc::new(Machine { world: Mutex::new(world), more: Condvar::new(), counts })
    }

    /// Begins a life, with these errors of each disk.
    pub(crate) fn begin(&self, errors: impl Fn(usize) -> Errors, crash_in: Option<u64>) {
        let mut world = self.world.lock();
        (world.dead, world.closed, world.crash_in) = (false, false, crash_in);
        for (n, disk) in world.disks.iter_mut().enumerate() {
            disk.errors = errors(n);
        }
    }

    /// Ends the server's life, perhaps with a power failure.
    pub(crate) fn end(&self, power_fails: bool) {
        let mut world = self.world.lock();
        world.sockets.clear();
        if power_fails {
            say(|| "power failure".into());
            world.disks.iter_mut().for_each(Disk::power_failure);
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.world.lock().dead
    }

    /// Registers a client's socket.
    pub(crate) fn connected(&self, socket: OwnedFd) {
        let mut world = self.world.lock();
        if world.dead {
            let _ = shutdown(&socket, Shutdown::Both);
        }
        world.sockets.push(socket);
    }

    /// Runs the requests of the disks, in any order, until they are closed.
    pub(crate) fn interrupts(&self) {
        loop {
            let mut world = self.world.lock();
            while world.taken.is_empty() && !world.closed {
                world = self.more.wait(world);
            }
            if world.taken.is_empty() {
                return;
            }
            world.tick();
            let at = choose(world.taken.len() as u64) as usize;
            let mut taken = world.taken.swap_remove(at);
            if !world.dead && taken.done.is_none() {
                let disk = &mut world.disks[taken.disk];
                let result = disk.perform(&mut taken.rq, self.counts);
                let (rq, name) = (&taken.rq, disk.name);
                say(|| {
                    let (op, at, len) = (rq.op(), rq.offset(), rq.len());
                    let fua = if rq.flags().fua { " fua" } else { "" };
                    format!("  {name}: {op}{fua} {at:#x}+{len:#x}: {result:?}")
                });
                taken.done = Some(result);
                if one_in(3) {
                    world.taken.push(taken);
                    continue;
                }
            }
            // The dead get no completion.
            let done = taken.done.filter(|_| !world.dead);
            drop(world);
            taken.rq.complete(done.unwrap_or_else(|| Err(IoError::new(IoErrorKind::Gone))));
        }
    }

    /// Closes the disks: no server uses them any more.
    pub(crate) fn close(&self) {
        self.world.lock().closed = true;
        self.more.notify_all();
    }
}

/// The driver of one of the disks.
pub(crate) struct Port {
    pub(crate) n: usize,
    pub(crate) machine: Arc<Machine>,
}

impl Driver for Port {
    fn info(&self) -> Info {
        let can_fua = self.machine.world.lock().disks[self.n].can_fua;
        Info { depth: 8, ..Info::new("simulated", Geometry { can_fua, ..Geometry::new(DISK) }) }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.machine.world.lock().taken.push(Taken { disk: self.n, rq, done: None });
        self.machine.more.notify_all();
        Dispatch::Started
    }
}
