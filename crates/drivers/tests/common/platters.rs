//! Disks in memory that outlive their users: they fail on demand, and a power failure takes
//! unflushed data.

use std::collections::BTreeSet;
use std::sync::Arc;

use corewise_blockmq::{
    Dispatch, Driver, Geometry, Info, IoError, IoErrorKind, Op, Queue, Started,
};
use corewise_sync::Mutex;

use super::{Rig, Rng};

pub const SECTOR: usize = 512;

/// The content of a disk.
#[derive(Clone)]
pub struct Platter {
    /// Bytes that are read.
    pub now: Vec<u8>,
    /// Bytes that a power failure leaves.
    durable: Vec<u8>,
    /// Sectors where these may differ.
    unflushed: BTreeSet<usize>,
    pub fault: Option<Fault>,
    can_fua: bool,
}

/// Requests that fail.
#[derive(Clone)]
pub struct Fault {
    pub ops: Vec<Op>,
    /// End of the bytes whose requests fail; all flushes fail too.
    pub until: u64,
    pub times: u64,
    /// True if a failing write is done all the same.
    pub done: bool,
}

impl Platter {
    pub fn new(size: u64, can_fua: bool) -> Self {
        let zeroes = vec![0; size as usize];
        let unflushed = BTreeSet::new();
        Self { now: zeroes.clone(), durable: zeroes, unflushed, fault: None, can_fua }
    }

    /// Writes bytes, before the disk is in use.
    pub fn fill(&mut self, at: usize, bytes: &[u8]) {
        for disk in [&mut self.now, &mut self.durable] {
            disk[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Loses each sector that was not flushed and for which `loses` is true.
    pub fn power_failure(&mut self, mut loses: impl FnMut() -> bool) {
        for sector in std::mem::take(&mut self.unflushed) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            match loses() {
                true => self.now[range.clone()].copy_from_slice(&self.durable[range]),
                false => self.durable[range.clone()].copy_from_slice(&self.now[range]),
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

    fn perform(&mut self, rq: &mut Started) -> Result<(), IoError> {
        let fault = self.fault.as_mut().filter(|fault| {
            let hit = rq.op() == Op::Flush || rq.offset() < fault.until;
            fault.times != 0 && hit && fault.ops.contains(&rq.op())
        });
        let failed = fault.map(|fault| {
            fault.times -= 1;
            fault.done
        });
        if failed != Some(false) {
            let range = rq.offset() as usize..(rq.offset() + rq.len()) as usize;
            let sectors = range.start / SECTOR..range.end / SECTOR;
            match rq.op() {
                Op::Read => drop(rq.put(&self.now[range])),
                Op::Write => {
                    rq.copy_to(&mut self.now[range]);
                    self.unflushed.extend(sectors.clone());
                    if rq.flags().fua {
                        self.flush(sectors);
                    }
                }
                Op::WriteZeroes | Op::Discard => {
                    self.now[range].fill(0);
                    self.unflushed.extend(sectors.clone());
                    if rq.flags().fua {
                        self.flush(sectors);
                    }
                }
                Op::Flush => self.flush(self.unflushed.clone().into_iter()),
                _ => return Err(IoError::new(IoErrorKind::NotSupported)),
            }
        }
        failed.map_or(Ok(()), |_| Err(IoError::new(IoErrorKind::Io(5))))
    }
}

/// The life of the process that uses the disks.
#[derive(Clone)]
pub struct Life(Arc<Mutex<Option<u64>>>);

impl Life {
    /// Creates a life that is killed at the request after this many.
    pub fn new(requests: u64) -> Self {
        Self(Arc::new(Mutex::new(Some(requests))))
    }

    /// Sets the number of requests left.
    pub fn limit(&self, requests: u64) {
        *self.0.lock() = Some(requests);
    }

    pub fn kill(&self) {
        *self.0.lock() = None;
    }

    /// Returns the number of requests until the kill; `None` after it.
    pub fn left(&self) -> Option<u64> {
        *self.0.lock()
    }

    pub fn is_over(&self) -> bool {
        self.0.lock().is_none()
    }
}

/// A disk as one process uses it.
struct Port {
    platter: Arc<Mutex<Platter>>,
    life: Life,
}

/// Makes the device of a disk, for a process of that life.
pub fn plug(rig: &Rig, platter: &Arc<Mutex<Platter>>, life: &Life) -> Arc<Queue> {
    rig.queue(Port { platter: platter.clone(), life: life.clone() })
}

impl Driver for Port {
    fn info(&self) -> Info {
        let platter = self.platter.lock();
        let can_fua = platter.can_fua;
        Info::new(
            "platter",
            Geometry { can_fua, can_flush: true, ..Geometry::new(platter.now.len() as u64) },
        )
    }

    fn queue_request(&self, _hctx: usize, mut rq: Started) -> Dispatch {
        // Held through the request: no request of the dead process comes after the kill.
        let mut life = self.life.0.lock();
        *life = life.and_then(|left| left.checked_sub(1));
        let result = match *life {
            Some(_) => self.platter.lock().perform(&mut rq),
            None => Err(IoError::new(IoErrorKind::Gone)),
        };
        drop(life);
        rq.complete(result);
        Dispatch::Started
    }
}

/// Returns true with a chance of one in `n`.
pub fn one_in(rng: &mut Rng, n: u64) -> bool {
    rng.below(n) == 0
}
