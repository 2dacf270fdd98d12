//! A disk with a flush file. When its machine is lost, it loses whole sectors that weren't synced.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use corewise_drivers::FileFault;
use corewise_sync::Mutex;
use object_store::ObjectStore;

use super::faulty::{FaultOutcome, Faulty};
use crate::local::Medium;

/// Sector size: a disk writes all bytes of a sector or none.
const SECTOR: usize = 512;

/// Content of the disk, the unsynced writes, and the moment at which the machine is lost.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Content as a reader sees it. `durable` has the durable content.
    pub(super) now: Vec<u8>,
    durable: Vec<u8>,
    /// Unsynced writes, each with its offset.
    loose: Vec<(usize, Vec<u8>)>,
    operations: u64,
    /// The operation at which the machine is lost.
    lost_at: Option<u64>,
    is_lost: bool,
    /// Fault of the file that happened while it is in use.
    pub(super) fault: Option<FileFault>,
    pub(super) fails: bool,
}

/// A file on a disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// L: is the lock; guards the disk.
    pub(super) state: Mutex<State>,
}

impl State {
    /// Returns true if the machine is lost now.
    fn step(&mut self) -> bool {
        self.operations += 1;
        self.is_lost |= self.lost_at.is_some_and(|at| self.operations >= at);
        self.is_lost
    }
}

fn put(into: &mut Vec<u8>, at: usize, data: &[u8]) {
    if into.len() < at + data.len() {
        into.resize(at + data.len(), 0);
    }
    into[at..at + data.len()].copy_from_slice(data);
}

impl Medium for Disk {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        let have = state.now.get(at as usize..).unwrap_or_default();
        let n = have.len().min(into.len());
        into[..n].copy_from_slice(&have[..n]);
        into[n..].fill(0);
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.fails {
            return Err(io::Error::other("no room"));
        }
        let before = state.is_lost;
        let lost = state.step();
        if !before {
            // The last write may be durable in part.
            state.loose.push((at as usize, data.to_vec()));
        }
        if lost {
            return Err(io::Error::other("the machine is lost"));
        }
        put(&mut state.now, at as usize, data);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.step() {
            return Err(io::Error::other("the machine is lost"));
        }
        state.loose.clear();
        state.durable = state.now.clone();
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.state.lock().now.len() as u64)
    }

    fn reserve(&self, size: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.step() {
            return Err(io::Error::other("the machine is lost"));
        }
        let size = (size as usize).max(state.now.len());
        state.now.resize(size, 0);
        state.durable.resize(size, 0);
        if let Some(FileFault::Truncated { .. }) = state.fault {
            state.fault = None;
        }
        Ok(())
    }

    fn name(&self) -> String {
        "the disk".to_owned()
    }

    fn verify_descriptor(&self) -> Result<(), FileFault> {
        match self.verify() {
            Err(FileFault::Moved { .. }) => Ok(()),
            found => found,
        }
    }

    fn verify(&self) -> Result<(), FileFault> {
        self.state.lock().fault.clone().map_or(Ok(()), Err)
    }
}

impl Disk {
    /// Returns the disk that the next machine finds: each unsynced sector is written or not.
    pub(super) fn after(&self, random: &mut fastrand::Rng) -> Arc<Self> {
        let state = self.state.lock();
        let mut now = state.durable.clone();
        for (at, data) in &state.loose {
            for (n, sector) in data.chunks(SECTOR).enumerate().filter(|_| random.bool()) {
                put(&mut now, at + n * SECTOR, sector);
            }
        }
        let found = State { durable: now.clone(), now, ..State::default() };
        Arc::new(Self { state: Mutex::new(found) })
    }

    /// Returns the disk that the next server finds if only this one was killed: all writes.
    pub(super) fn killed(&self) -> Arc<Self> {
        let now = self.state.lock().now.clone();
        let found = State { durable: now.clone(), now, ..State::default() };
        Arc::new(Self { state: Mutex::new(found) })
    }

    /// Loses the whole machine at one of the next operations, or at a later request to the store.
    pub(super) fn lose(
        self: &Arc<Self>,
        inner: &Arc<dyn ObjectStore>,
        at: Loss,
    ) -> Arc<dyn ObjectStore> {
        let disk = Arc::clone(self);
        let mut left = match at {
            Loss::File(at) => {
                self.state.lock().lost_at = Some(at);
                u64::MAX
            }
            Loss::Store(left) => left,
        };
        let judge = move |_: &str| {
            left = left.saturating_sub(1);
            let mut state = disk.state.lock();
            state.is_lost |= left == 0;
            let fate = if state.is_lost { FaultOutcome::Hangs } else { FaultOutcome::Done };
            (fate, Duration::ZERO)
        };
        Arc::new(Faulty::new(inner, Box::new(judge)))
    }
}

/// Moment at which the machine is lost: an operation of the file, or a request to the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    File(u64),
    Store(u64),
}
