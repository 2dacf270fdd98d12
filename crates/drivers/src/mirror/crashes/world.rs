//! The world of the runs: disks that outlive the mirrors over them, a client, and the choices of a
//! run.

use std::collections::BTreeMap;
use std::sync::Arc;

use corewise_blockmq::model::ByHand;
use corewise_blockmq::{BlockDevice, Geometry, IoError, IoErrorKind, Op, Queue, Request};
use corewise_sync::Mutex;

const SECTOR: usize = 512;
/// Number of bytes of data on a leg: the rest is the record's.
const DATA: u64 = 64 << 10;
const LEG: u64 = 2 * DATA;
/// Size of a region, as a power of two: 4 KiB.
pub(super) const REGION_SHIFT: u32 = 12;
const SECTORS: u64 = 8;
/// Number of bytes at the beginning of the data, and of the record, that are used here.
pub(super) const USED: usize = 12 << 10;

/// The choices of a run: the first ones as given, the later ones as usual.
#[derive(Default)]
pub(super) struct Choices {
    /// The ways taken: which one, of how many, and whether another one is out of the ordinary.
    pub(super) taken: Vec<(usize, usize)>,
    pub(super) at: usize,
    /// The incidents that may still happen, in this order.
    pub(super) plan: &'static [Kind],
    /// Number of requests after the first incident within which the next one happens.
    pub(super) soon: usize,
    pub(super) has_begun: bool,
    pub(super) log: Vec<String>,
}

impl Choices {
    /// Picks one of several ways, the first of which is the usual one.
    pub(super) fn pick(&mut self, ways: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, ways));
        }
        let (way, of) = self.taken[self.at];
        assert_eq!(of, ways, "a run isn't determined by its choices: {}", self.log.join(", "));
        self.at += 1;
        way
    }

    /// Picks the incident at a request to the record of one of `legs` legs, which may fail in
    /// `failures` ways.
    pub(super) fn incident(&mut self, legs: usize, failures: usize) -> Incident {
        let Some((kind, rest)) =
            self.plan.split_first().filter(|_| self.soon != 0 || !self.has_begun)
        else {
            return Incident::None;
        };
        self.soon = self.soon.saturating_sub(usize::from(self.has_begun));
        let ways = if *kind == Kind::Killed { 1 } else { legs + failures };
        let Some(way) = self.pick(1 + ways).checked_sub(1) else { return Incident::None };
        (self.plan, self.has_begun) = (rest, true);
        match way.checked_sub(legs) {
            _ if *kind == Kind::Killed => Incident::Killed,
            None => Incident::Client { failing: way },
            Some(way) => Incident::Failed(
                [WriteRemains::Nothing, WriteRemains::All, WriteRemains::Torn][way],
            ),
        }
    }

    /// Moves on to the choices of the next run; false if all have been tried.
    pub(super) fn next(&mut self) -> bool {
        while let Some((way, of)) = self.taken.pop() {
            if way + 1 < of {
                self.taken.push((way + 1, of));
                return true;
            }
        }
        false
    }
}

/// A disk that outlives the mirrors. It has only the bytes that are used: all others are zero, and
/// stay so.
#[derive(Clone)]
pub(super) struct Platter {
    pub(super) now: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Writes that a power failure may take.
    pub(super) unflushed: Vec<(usize, usize)>,
    pub(super) can_fua: bool,
}

/// The remains of a failed write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WriteRemains {
    Nothing,
    All,
    /// The write without its first sector.
    Torn,
}

impl Platter {
    pub(super) fn new(can_fua: bool) -> Self {
        let zeroes = vec![0; 2 * USED];
        Self { now: zeroes.clone(), durable: zeroes, unflushed: Vec::new(), can_fua }
    }

    /// Returns the index of a byte, if it is there.
    fn place(offset: u64) -> Option<usize> {
        let (first, at) = if offset < DATA { (0, offset) } else { (USED, offset - DATA) };
        Some(at as usize).filter(|at| *at < USED).map(|at| first + at)
    }

    fn read(&self, rq: &mut Request) {
        let Some(at) = Self::place(rq.offset()) else {
            let len = rq.len();
            let _ = rq.put_zeroes(len);
            return;
        };
        let there = (rq.len() as usize).min((at / USED + 1) * USED - at);
        let _ = rq.put(&self.now[at..at + there]);
        let rest = rq.len() - there as u64;
        let _ = rq.put_zeroes(rest);
    }

    fn write(&mut self, rq: &Request, left: WriteRemains) {
        let len = rq.len() as usize;
        let Some(at) = Self::place(rq.offset()) else {
            assert!(rq.chunks().all(|chunk| chunk.iter().all(|byte| *byte == 0)));
            return;
        };
        let mut bytes = vec![0; len];
        rq.copy_to(&mut bytes);
        let first = match left {
            WriteRemains::Nothing => return,
            WriteRemains::All => 0,
            WriteRemains::Torn => SECTOR,
        };
        self.now[at + first..at + len].copy_from_slice(&bytes[first..]);
        self.unflushed.push((at, len));
        // Only the record is of interest: data reach the platter at once.
        if rq.flags().fua || rq.offset() < DATA {
            self.durable[at + first..at + len].copy_from_slice(&bytes[first..]);
            let _ = self.unflushed.pop();
        }
    }

    fn flush(&mut self) {
        for (at, len) in self.unflushed.drain(..) {
            self.durable[at..at + len].copy_from_slice(&self.now[at..at + len]);
        }
    }

    /// Applies the remains to each write that was not flushed.
    pub(super) fn power_failure(&mut self, left: WriteRemains) {
        for (at, len) in std::mem::take(&mut self.unflushed) {
            let first = match left {
                WriteRemains::Nothing => len,
                WriteRemains::All => 0,
                WriteRemains::Torn => SECTOR.min(len),
            };
            self.durable[at + first..at + len].copy_from_slice(&self.now[at + first..at + len]);
        }
        self.now.copy_from_slice(&self.durable);
    }

    pub(super) fn version(&self, sector: u64) -> u32 {
        let at = sector as usize * SECTOR;
        u32::from_le_bytes([self.now[at], self.now[at + 1], self.now[at + 2], self.now[at + 3]])
    }
}

pub(super) struct World {
    pub(super) ways: Choices,
    pub(super) platters: Vec<Platter>,
    /// The disk of each leg; the others are spare.
    pub(super) legs: Vec<usize>,
    pub(super) dead: bool,
    /// True while the client is served: no other incident happens meanwhile.
    pub(super) inside: bool,
    /// The disk that fails writes of data.
    pub(super) failing: Option<usize>,
    pub(super) away: Option<usize>,
    /// The last write to each sector, and whether it was acknowledged.
    pub(super) promises: BTreeMap<u64, (u32, bool)>,
    pub(super) writes: u32,
    /// The queue that a client writes to.
    pub(super) front: Option<Arc<Queue>>,
}

/// The kind of an incident.
#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    /// A write fails.
    Failed,
    /// The process is killed.
    Killed,
}

/// An incident at a request to the record.
#[derive(Debug)]
pub(super) enum Incident {
    None,
    /// A kill before the request. A write in flight leaves the same as a failed one.
    Killed,
    /// A change before the request that this leg fails.
    Client {
        failing: usize,
    },
    Failed(WriteRemains),
}

impl World {
    pub(super) fn new(platters: Vec<Platter>, ways: Choices) -> Self {
        Self {
            ways,
            legs: (0..platters.len()).collect(),
            platters,
            dead: false,
            inside: false,
            failing: None,
            away: None,
            promises: BTreeMap::new(),
            writes: 0,
            front: None,
        }
    }

    /// Returns how a request to the record of leg `n` ends; `None` if a change comes first, which
    /// leg `failing` fails.
    pub(super) fn record(&mut self, n: usize, rq: &Request) -> Option<Result<(), IoError>> {
        let failures = if rq.op() == Op::Write { 3 } else { 2 };
        let incident = self.ways.incident(self.platters.len(), failures);
        if !matches!(incident, Incident::None) {
            let place = rq.offset().saturating_sub(DATA);
            let what = format!("{} of leg {n} at {place:#x}: {incident:?}", rq.op());
            self.ways.log.push(what);
        }
        match incident {
            Incident::None => self.perform(n, rq, WriteRemains::All),
            Incident::Killed => self.dead = true,
            Incident::Client { failing } => {
                (self.failing, self.inside) = (Some(failing), true);
                return None;
            }
            Incident::Failed(left) => {
                self.perform(n, rq, left);
                return Some(Err(IoError::new(IoErrorKind::Io(5))));
            }
        }
        Some(if self.dead { Err(IoError::new(IoErrorKind::Gone)) } else { Ok(()) })
    }

    pub(super) fn perform(&mut self, n: usize, rq: &Request, left: WriteRemains) {
        match (rq.op(), left) {
            (Op::Flush, WriteRemains::Nothing) => {}
            (Op::Flush, _) => self.platters[n].flush(),
            _ => self.platters[n].write(rq, left),
        }
    }
}

pub(super) type Shared = Arc<Mutex<World>>;

pub(super) struct Port {
    pub(super) n: usize,
    pub(super) world: Shared,
}

impl BlockDevice for Port {
    fn name(&self) -> &str {
        ["leg0", "leg1", "leg2"][self.n]
    }

    fn geometry(&self) -> Geometry {
        let can_fua = self.world.lock().platters[self.n].can_fua;
        Geometry { can_fua, can_flush: true, ..Geometry::new(LEG) }
    }

    fn submit(&self, mut rq: Request) {
        let result = loop {
            let mut guard = self.world.lock();
            let world = &mut *guard;
            if world.dead {
                break Err(IoError::new(IoErrorKind::Gone));
            }
            if rq.op() == Op::Extents {
                // All bytes may be data.
                break Ok(());
            }
            if rq.op() == Op::Read {
                drop(rq.rooms());
                world.platters[self.n].read(&mut rq);
                break Ok(());
            }
            if world.inside || (rq.op() == Op::Write && rq.offset() < DATA) {
                break match world.failing == Some(self.n) && rq.offset() < DATA {
                    true => Err(IoError::new(IoErrorKind::Io(5))),
                    false => {
                        world.perform(self.n, &rq, WriteRemains::All);
                        Ok(())
                    }
                };
            }
            let ended = world.record(self.n, &rq);
            drop(guard);
            match ended {
                Some(result) => break result,
                None => write(&self.world, 0),
            }
        };
        rq.complete(result);
    }
}

/// Writes as a client to a sector of its own in region `region`.
pub(super) fn write(world: &Shared, region: u64) {
    let mut guard = world.lock();
    let Some(front) = guard.front.clone() else {
        // The mirror isn't up yet: no client can write.
        (guard.failing, guard.inside) = (None, false);
        return;
    };
    if guard.dead {
        return;
    }
    guard.writes += 1;
    let version = guard.writes;
    let theirs = region * SECTORS..(region + 1) * SECTORS;
    let used = guard.promises.range(theirs).count() as u64;
    assert!(used < SECTORS, "more writes than sectors");
    let sector = region * SECTORS + used;
    guard.promises.insert(sector, (version, false));
    drop(guard);
    let theirs = Arc::clone(world);
    let bytes = version.to_le_bytes().repeat(SECTOR / 4);
    let rq = Request::write(sector * SECTOR as u64, bytes).on_complete(move |done| {
        let mut world = theirs.lock();
        if done.result.is_ok() && !world.dead {
            world.promises.insert(sector, (version, true));
            world.ways.log.push(format!("{version} is acknowledged"));
        }
    });
    front.submit(rq);
    while front.step(0).is_some() {}
    let mut guard = world.lock();
    (guard.failing, guard.inside) = (None, false);
}
