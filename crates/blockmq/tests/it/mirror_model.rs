//! Mirrors against a plain model, in every order of create, write, error, check, stop, kill, power failure, start, leg
//! away, leg replaced (also while it serves) and leg back: what was promised is never lost, nor served as something else without an error,
//! and a leg that is called in sync is that. Some 40 lives of a mirror a case; ten times as many cases with
//! `COREWISE_LONG`.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use crate::common::platters::{Fault, Life, Platter, SECTOR, one_in, plug};
use crate::common::{Rig, Rng, STALL, submit};
use corewise_blockmq::drivers::{Degraded, LegState, Mirror, MirrorLeg, MirrorOptions};
use corewise_blockmq::{BlockDeviceExt, Completed, Op, Queue, Request};
use corewise_sync::Mutex;

/// Bytes of data, and of a disk: the rest is the record's.
const SIZE: u64 = 64 << 10;
const LEG: u64 = 2 * SIZE;
const SECTORS: usize = SIZE as usize / SECTOR;
/// Longer than any life here.
const NEVER: u64 = u64::MAX;

type Disk = Arc<Mutex<Platter>>;

fn sector(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(SECTOR / 4)
}

fn version(bytes: &[u8]) -> u32 {
    assert!(bytes.chunks(4).all(|word| word == &bytes[..4]), "a torn sector");
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

/// A mirror that lives.
struct Up {
    life: Life,
    mirror: Arc<Mirror>,
    queue: Arc<Queue>,
}

/// Starts a mirror of the disks, of which those in `away` are missing until `away` has them no more.
fn start(
    rig: &Rig,
    disks: &[Disk],
    away: &Arc<Mutex<Vec<bool>>>,
    life: &Life,
    change: impl FnOnce(&mut MirrorOptions),
) -> Result<Up, String> {
    let leg = |n: usize| match away.lock()[n] {
        true => MirrorLeg::Missing { name: format!("disk{n}"), why: "away".to_string() },
        false => MirrorLeg::Here(plug(rig, &disks[n], life)),
    };
    let legs: Vec<_> = (0..disks.len()).map(leg).collect();
    let theirs: Vec<_> = disks.iter().map(|disk| plug(rig, disk, life)).collect();
    let away = Arc::clone(away);
    let mut options = MirrorOptions::new()
        .region_shift(Some(12))
        .clean_after(std::time::Duration::from_millis(1))
        .find(move |n| match away.lock()[n] {
            true => Err("away".to_string()),
            false => Ok(theirs[n].clone()),
        });
    change(&mut options);
    let mirror = Arc::new(Mirror::open(legs, options, &rig.wq).map_err(|e| e.to_string())?);
    let queue = Queue::builder(&rig.machine, mirror.clone()).build(&rig.wq);
    Ok(Up { life: life.clone(), mirror, queue })
}

impl Up {
    fn in_sync(&self) -> Vec<bool> {
        self.mirror.status().legs.iter().map(|leg| *leg == LegState::InSync).collect()
    }

    /// Waits until nothing is left to be resynced, or it is dead.
    fn resynced(&self) {
        let busy = |leg: &LegState| matches!(leg, LegState::Resyncing | LegState::Returning);
        while !self.life.is_over() {
            let status = self.mirror.status();
            if status.to_resync == 0 && !status.legs.iter().any(busy) {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// An orderly end.
    fn close(self) {
        self.queue.drain();
        self.mirror.settle();
    }

    /// It dies here if it hasn't yet.
    fn kill(self) {
        self.life.kill();
        self.queue.drain();
    }
}

/// What the mirror promises of a sector.
#[derive(Clone)]
struct Promise {
    /// What is read now, where that is known.
    now: Option<u32>,
    /// What may be read after a power failure.
    may: Vec<u32>,
}

struct Case {
    rng: Rng,
    rig: Rig,
    record: bool,
    disks: Vec<Disk>,
    away: Arc<Mutex<Vec<bool>>>,
    promises: Vec<Promise>,
    versions: u32,
    /// What the disks were once.
    copies: Vec<Option<Platter>>,
    /// One that is again what it was once, and has not met the others since.
    old: Option<usize>,
    /// The last start was killed.
    begun: bool,
    /// The mirror was closed when these were called in sync, and they were left alone since.
    sure: Option<Vec<bool>>,
    log: Vec<String>,
}

impl Case {
    /// A mirror is made of a disk with data and others with other data.
    fn new(seed: u64, record: bool) -> Self {
        let mut rng = Rng::new(seed);
        let n = 2 + rng.below(2) as usize;
        let mut promises = Vec::new();
        let mut disk = |n: u32| {
            let mut platter = Platter::new(LEG, rng.below(2) == 0);
            let most = if record { SECTORS } else { 2 * SECTORS };
            (0..most).for_each(|at| platter.fill(at * SECTOR, &sector(1_000_000 * n + at as u32)));
            Arc::new(Mutex::new(platter))
        };
        let disks: Vec<Disk> = (0..n as u32).map(&mut disk).collect();
        for at in 0..SECTORS as u32 {
            promises.push(Promise { now: Some(at), may: vec![at] });
        }
        let away = Arc::new(Mutex::new(vec![false; n]));
        let (copies, log) = (vec![None; n], Vec::new());
        let (rig, versions, sure) = (Rig::live(), 10_000, None);
        let (old, begun) = (None, false);
        Self { rng, rig, record, disks, away, promises, versions, copies, old, begun, sure, log }
    }

    #[track_caller]
    fn holds(&self, n: usize, found: u32, by: &str) {
        let promise = &self.promises[n];
        let good = promise.now.map_or(promise.may.contains(&found), |now| now == found);
        assert!(
            good,
            "{by} has {found} in sector {n}, and that is {:?} or one of {:?}; {}",
            promise.now,
            promise.may,
            self.log.join(", ")
        );
    }

    /// Legs that are called in sync have what was promised, and the same.
    fn check_claims(&self, up: &Up) {
        let in_sync = up.in_sync();
        if up.life.is_over() {
            return;
        }
        let mut first: Option<(usize, Vec<u8>)> = None;
        for n in (0..self.disks.len()).filter(|&n| in_sync[n]) {
            let data = self.disks[n].lock().now[..SIZE as usize].to_vec();
            for at in 0..SECTORS {
                let found = version(&data[at * SECTOR..(at + 1) * SECTOR]);
                self.holds(at, found, &format!("disk {n}, in sync,"));
            }
            let (which, theirs) = first.get_or_insert((n, data.clone()));
            assert!(*theirs == data, "{which} and {n} are called in sync; {}", self.log.join(", "));
        }
        assert!(first.is_some(), "nobody is in sync; {}", self.log.join(", "));
    }

    fn write(&mut self, up: &Up) {
        let mut asked: Vec<(usize, u32, Receiver<Completed>)> = Vec::new();
        let first = self.rng.below(SECTORS as u64) as usize;
        for n in 0..1 + self.rng.below(4) as usize {
            let at = (first + n * (1 + self.rng.below(20) as usize)) % SECTORS;
            if asked.iter().any(|(theirs, ..)| *theirs == at) {
                continue;
            }
            self.versions += 1;
            self.promises[at].may.push(self.versions);
            self.promises[at].now = None;
            let rq = Request::write((at * SECTOR) as u64, sector(self.versions));
            asked.push((at, self.versions, submit(&*up.queue, rq)));
        }
        for (at, version, done) in asked {
            if done.recv_timeout(STALL).unwrap().result.is_ok() {
                self.promises[at].now = Some(version);
            }
        }
    }

    fn flush(&mut self, up: &Up) {
        if up.queue.flush().is_ok() {
            for promise in &mut self.promises {
                if let Some(now) = promise.now {
                    promise.may = vec![now];
                }
            }
        }
    }

    fn read(&mut self, up: &Up, may_fail: bool) {
        let at = self.rng.below(SECTORS as u64) as usize;
        match up.queue.read_at((at * SECTOR) as u64, SECTOR) {
            Ok(bytes) => self.holds(at, version(&bytes), "a read"),
            Err(error) => assert!(may_fail || up.life.is_over(), "{error}"),
        }
    }

    /// A blank disk takes the place of a leg.
    fn replace(&mut self, up: &Up) {
        let n = self.rng.below(self.disks.len() as u64) as usize;
        let disk = Arc::new(Mutex::new(Platter::new(LEG, one_in(&mut self.rng, 2))));
        let came = up.mirror.replace(n, plug(&self.rig, &disk, &up.life));
        self.log.push(format!("disk {n} is replaced: {}", came.is_ok()));
        if came.is_ok() {
            self.disks[n] = disk;
            self.copies[n] = None;
            self.away.lock()[n] = false;
        }
    }

    fn fault(&mut self, forever: bool) {
        let ops = match self.rng.below(4) {
            0 => vec![Op::Write],
            1 => vec![Op::Read],
            2 => vec![Op::Flush],
            _ => vec![Op::Write, Op::Read, Op::Flush],
        };
        let until = if one_in(&mut self.rng, 2) { SIZE } else { LEG };
        let times = if forever { NEVER } else { 1 + self.rng.below(3) };
        let n = self.rng.below(self.disks.len() as u64) as usize;
        self.log.push(format!("{ops:?} of disk {n} fail {times} times below {until}"));
        let done = one_in(&mut self.rng, 2);
        self.disks[n].lock().fault = Some(Fault { ops, until, times, done });
    }

    /// Starts it as an operator does, which says that a leg can be done without only where he knows it.
    fn start(&mut self, life: &Life) -> Option<Up> {
        let record = self.record;
        // An old copy alone would be believed: it was a mirror once.
        if self.old.is_some() || std::mem::take(&mut self.begun) {
            self.away.lock().fill(false);
        }
        for _ in 0..3 {
            let degraded = match &self.sure {
                Some(sure) if sure.iter().zip(&*self.away.lock()).any(|(s, away)| *s && !away) => {
                    Degraded::Always
                }
                _ => Degraded::Known,
            };
            let up = start(&self.rig, &self.disks, &self.away, life, |options| {
                (options.degraded, options.record) = (degraded, record);
            });
            match up {
                Ok(up) => {
                    (self.sure, self.old) = (None, None);
                    return Some(up);
                }
                // No client has written anything: he knows what he knew. But a start has a name of its own, and
                // some legs may have it: beginning without them next would be a start that they know nothing of.
                Err(_) if life.is_over() => {
                    self.begun = true;
                    return None;
                }
                Err(error) => {
                    self.log.push(format!("refused: {error}"));
                    if let Some(old) = self.old.filter(|_| error.contains("used without the other"))
                    {
                        // Too much has happened since: he does what he is told to do.
                        self.disks[old].lock().fill(SIZE as usize, &[0; SIZE as usize]);
                        continue;
                    }
                    let log = self.log.join(", ");
                    assert!(self.away.lock().contains(&true), "all are there: {log}");
                    self.away.lock().fill(false);
                }
            }
        }
        panic!("refused again and again; {}", self.log.join(", "));
    }

    /// One life of the mirror: until it is closed or killed.
    fn live(&mut self) {
        let dies = if one_in(&mut self.rng, 2) { self.rng.below(150) } else { NEVER };
        let life = Life::new(dies);
        self.log.push(format!("start, away {:?}, dies at {dies}", self.away.lock()));
        let Some(up) = self.start(&life) else { return self.after_kill() };
        let mut failing = false;
        for _ in 0..self.rng.below(40) {
            match self.rng.below(18) {
                0..6 => self.write(&up),
                6..8 => self.flush(&up),
                8..12 => self.read(&up, failing),
                12 => {
                    failing = true;
                    let forever = one_in(&mut self.rng, 4);
                    self.fault(forever);
                }
                13 => {
                    let n = self.rng.below(self.disks.len() as u64) as usize;
                    self.away.lock()[n] = false;
                    let _ = up.mirror.take_back(n);
                }
                14 => {
                    let repair = one_in(&mut self.rng, 2);
                    self.log.push(format!("check, repair {repair}"));
                    let _ = up.mirror.check(None, repair);
                }
                // While it serves.
                15 => self.replace(&up),
                // A place that can't be read or written takes for ever.
                16 if !failing => up.resynced(),
                _ => self.check_claims(&up),
            }
            if up.life.is_over() {
                break;
            }
        }
        if up.life.is_over() || one_in(&mut self.rng, 3) {
            self.log.push("kill".to_string());
            up.kill();
            return self.after_kill();
        }
        self.log.push("close".to_string());
        self.check_claims(&up);
        let (mirror, life) = (up.mirror.clone(), up.life.clone());
        up.close();
        if life.is_over() {
            // It died while it closed: nobody has seen what it would have said of its legs.
            self.log.push("it died meanwhile".to_string());
            return self.after_kill();
        }
        let in_sync = mirror.status().legs.iter().map(|leg| *leg == LegState::InSync).collect();
        self.heal();
        self.sure = Some(in_sync);
    }

    fn heal(&mut self) {
        self.disks.iter().for_each(|disk| disk.lock().fault = None);
    }

    /// The process was killed; perhaps since the power failed.
    fn after_kill(&mut self) {
        self.heal();
        if one_in(&mut self.rng, 2) {
            return;
        }
        self.log.push("power failure".to_string());
        let most = self.rng.below(3);
        for disk in &self.disks {
            let rng = &mut self.rng;
            disk.lock().power_failure(|| rng.below(2) < most);
        }
        for promise in &mut self.promises {
            promise.now = Some(promise.may[0]).filter(|_| promise.may.len() == 1);
        }
    }

    /// What happens to the legs while the mirror is down.
    fn meddle(&mut self) {
        let n = self.rng.below(self.disks.len() as u64) as usize;
        // Nobody throws away what he doesn't know to be elsewhere.
        let others = |sure: &Vec<bool>, away: &[bool]| {
            (0..sure.len()).any(|m| m != n && sure[m] && !away[m])
        };
        let may_lose = match (self.record, &self.sure) {
            (true, Some(sure)) => others(sure, &self.away.lock()),
            (true, None) => false,
            (false, _) => n != 0,
        };
        match self.rng.below(6) {
            0 if may_lose && self.old.is_none() => {
                self.log.push(format!("disk {n} is replaced"));
                let can_fua = one_in(&mut self.rng, 2);
                *self.disks[n].lock() = Platter::new(LEG, can_fua);
                self.lose(n);
            }
            1 if may_lose && self.old.is_none() => {
                let Some(copy) = self.copies[n].clone() else { return };
                self.old = Some(n);
                self.log.push(format!("disk {n} is what it was"));
                *self.disks[n].lock() = copy;
                self.lose(n);
            }
            2 if self.record => self.away.lock()[n] = true,
            3 => self.away.lock().fill(false),
            // A copy of a disk that is in use is no state that it ever had.
            4 if self.sure.is_some() => self.copies[n] = Some(self.disks[n].lock().clone()),
            _ => {}
        }
    }

    fn lose(&mut self, n: usize) {
        if let Some(sure) = &mut self.sure {
            sure[n] = false;
        }
    }

    /// In the end all legs are there, and in sync.
    fn end(&mut self) {
        self.away = Arc::new(Mutex::new(vec![false; self.disks.len()]));
        let up = self.start(&Life::new(NEVER)).unwrap();
        while up.in_sync().contains(&false) {
            for n in 0..self.disks.len() {
                let _ = up.mirror.take_back(n);
            }
            std::thread::yield_now();
        }
        self.check_claims(&up);
        for _ in 0..SECTORS {
            self.read(&up, false);
        }
        up.close();
    }
}

/// How many times as many cases.
fn long() -> u64 {
    if std::env::var_os("COREWISE_LONG").is_some() { 10 } else { 1 }
}

fn cases(record: bool) {
    for seed in 1..=12 * long() {
        let mut case = Case::new(seed, record);
        case.log.push(format!("seed {seed}"));
        for _ in 0..40 {
            case.live();
            case.meddle();
        }
        case.end();
    }
}

#[test]
fn a_mirror_with_a_record_keeps_its_promises_whatever_happens_to_it() {
    cases(true);
}

#[test]
fn a_mirror_without_a_record_keeps_its_promises_whatever_happens_to_all_but_its_first_part() {
    cases(false);
}

#[test]
fn a_mirror_that_is_killed_at_any_request_while_it_is_made_is_its_first_part() {
    let rig = Rig::live();
    let here = || Arc::new(Mutex::new(vec![false; 2]));
    let data = |disk: &Disk| disk.lock().now[..SIZE as usize].to_vec();
    for requests in 0.. {
        let disks = [true, false].map(|can_fua| Arc::new(Mutex::new(Platter::new(LEG, can_fua))));
        for at in 0..SECTORS {
            disks[0].lock().fill(at * SECTOR, &sector(7 + at as u32));
        }
        let full = data(&disks[0]);
        let life = Life::new(requests);
        let mut was_killed = true;
        if let Ok(up) = start(&rig, &disks, &here(), &life, |_| {}) {
            up.resynced();
            was_killed = life.is_over();
            up.kill();
        }
        let is_made = data(&disks[1]) == full;
        for loses in [[false, false], [false, true], [true, false], [true, true]] {
            for away in [[false, false], [false, true], [true, false]] {
                let copy = |n: usize| {
                    let mut platter = disks[n].lock().clone();
                    platter.power_failure(|| loses[n]);
                    Arc::new(Mutex::new(platter))
                };
                let disks = [copy(0), copy(1)];
                let missing = Arc::new(Mutex::new(away.to_vec()));
                let life = Life::new(NEVER);
                let up = start(&rig, &disks, &missing, &life, |options| {
                    options.degraded = Degraded::Always;
                });
                let case = format!("killed at {requests}, lost {loses:?}, away {away:?}");
                let Ok(up) = up else {
                    assert!(away[0] || away[1], "{case}: {}", up.err().unwrap());
                    continue;
                };
                assert!(!away[0] || is_made, "{case}: the copy is served");
                let found = up.queue.read_at(0, SIZE as usize).unwrap();
                assert!(found[..] == full[..], "{case}");
                up.resynced();
                assert!(away[1] || data(&disks[1]) == full, "{case}");
                assert_eq!(up.in_sync(), away.map(|away| !away), "{case}");
                up.close();
            }
        }
        if !was_killed {
            return;
        }
    }
}
