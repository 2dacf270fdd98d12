//! Mirrors against a plain model, in every order of create, write, error, check, stop, kill, power
//! failure, start, leg away, leg replaced (also while it serves), added, removed and back. Promised
//! data is never lost, nor served as something else without an error, and a leg that is called in
//! sync is in sync. Some 40 lives of a mirror a case; ten times as many cases with `COREWISE_LONG`.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};

use crate::common::platters::{Fault, Life, Platter, SECTOR, one_in, plug};
use crate::common::{Rig, Rng, STALL, submit};
use corewise_blockmq::{BlockDeviceExt, Completed, Op, Queue, Request};
use corewise_drivers::{Degraded, LegState, Mirror, MirrorLeg, MirrorOptions};
use corewise_sync::Mutex;

/// Number of bytes of data on a disk: the rest is the record's.
const SIZE: u64 = 64 << 10;
const LEG: u64 = 2 * SIZE;
const SECTORS: usize = SIZE as usize / SECTOR;
/// Number of requests that no life here reaches.
const NEVER: u64 = u64::MAX;

type Disk = Arc<Mutex<Platter>>;

fn sector(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(SECTOR / 4)
}

fn version(bytes: &[u8]) -> u32 {
    assert!(bytes.chunks(4).all(|word| word == &bytes[..4]), "a torn sector");
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

/// A disk that a mirror is given as a leg.
#[derive(Clone)]
struct Part {
    disk: Disk,
    /// True while it can't be had.
    away: Arc<AtomicBool>,
    /// An earlier state of the disk.
    copy: Option<Platter>,
}

impl Part {
    fn new(disk: &Disk) -> Self {
        Self { disk: Arc::clone(disk), away: Arc::default(), copy: None }
    }

    fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Relaxed);
    }
}

/// A running mirror.
struct Up {
    life: Life,
    mirror: Arc<Mirror>,
    queue: Arc<Queue>,
    /// The numbers of its legs, in the order of the parts.
    numbers: Vec<usize>,
}

/// Starts a mirror of the parts, of which those that are away are missing until they are back.
fn start(
    rig: &Rig,
    parts: &[Part],
    life: &Life,
    change: impl FnOnce(&mut MirrorOptions),
) -> Result<Up, String> {
    let leg = |(n, part): (usize, &Part)| match part.is_away() {
        true => MirrorLeg::Missing { name: format!("disk{n}"), why: "away".to_string() },
        false => MirrorLeg::Here(plug(rig, &part.disk, life)),
    };
    let legs: Vec<_> = parts.iter().enumerate().map(leg).collect();
    let theirs: Vec<_> =
        parts.iter().map(|part| (part.away.clone(), plug(rig, &part.disk, life))).collect();
    let numbers: Arc<OnceLock<Vec<usize>>> = Arc::default();
    let known = Arc::clone(&numbers);
    let mut options = MirrorOptions::new()
        .region_shift(Some(12))
        .clean_after(std::time::Duration::from_millis(1))
        .find(move |n| {
            let at = known.get().and_then(|known| known.iter().position(|theirs| *theirs == n));
            match at.map(|at| &theirs[at]) {
                Some((away, disk)) if !away.load(Ordering::Relaxed) => Ok(disk.clone()),
                _ => Err("away".to_string()),
            }
        });
    change(&mut options);
    let mirror = Arc::new(Mirror::open(legs, options, &rig.wq).map_err(|e| e.to_string())?);
    let states = mirror.status().legs;
    let is_leg = |n: &usize| states[*n] != LegState::Removed;
    let numbers = numbers.get_or_init(|| (0..states.len()).filter(is_leg).collect()).clone();
    assert_eq!(numbers.len(), parts.len());
    let queue = Queue::builder(&rig.machine, mirror.clone()).build(&rig.wq);
    Ok(Up { life: life.clone(), mirror, queue, numbers })
}

impl Up {
    fn in_sync(&self) -> Vec<bool> {
        let legs = self.mirror.status().legs;
        self.numbers.iter().map(|&n| legs[n] == LegState::InSync).collect()
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

    /// Ends the mirror in order.
    fn close(self) {
        self.queue.drain();
        self.mirror.settle();
    }

    /// Kills the mirror, if it hasn't died yet.
    fn kill(self) {
        self.life.kill();
        self.queue.drain();
    }
}

/// The mirror's promise for a sector.
#[derive(Clone)]
struct Promise {
    /// The content that is read now, if that is known.
    now: Option<u32>,
    /// The contents that may be read after a power failure.
    may: Vec<u32>,
}

struct Case {
    rng: Rng,
    rig: Rig,
    record: bool,
    /// The legs, in the order of their numbers.
    parts: Vec<Part>,
    /// Other lists of legs that may be right: the server died, or failed, during changes of them.
    or: Vec<Vec<Part>>,
    /// Disks that were legs once.
    former: Vec<Disk>,
    promises: Vec<Promise>,
    versions: u32,
    /// The disk that is again in an earlier state, and has not met the others since.
    old: Option<usize>,
    /// True if the last start was killed.
    begun: bool,
    /// The legs that were called in sync when the mirror was closed, if they were left alone since.
    sure: Option<Vec<bool>>,
    log: Vec<String>,
}

impl Case {
    /// Makes a mirror of a disk with data and others with other data.
    fn new(seed: u64, record: bool) -> Self {
        let mut rng = Rng::new(seed);
        let n = 2 + rng.below(2) as usize;
        let mut promises = Vec::new();
        let mut part = |n: u32| {
            let mut platter = Platter::new(LEG, rng.below(2) == 0);
            let most = if record { SECTORS } else { 2 * SECTORS };
            (0..most).for_each(|at| platter.fill(at * SECTOR, &sector(1_000_000 * n + at as u32)));
            Part::new(&Arc::new(Mutex::new(platter)))
        };
        let parts: Vec<Part> = (0..n as u32).map(&mut part).collect();
        for at in 0..SECTORS as u32 {
            promises.push(Promise { now: Some(at), may: vec![at] });
        }
        let (or, former, log) = (Vec::new(), Vec::new(), Vec::new());
        let (rig, versions, sure) = (Rig::live(), 10_000, None);
        let (old, begun) = (None, false);
        Self { rng, rig, record, parts, or, former, promises, versions, old, begun, sure, log }
    }

    fn all_parts(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().chain(self.or.iter().flatten())
    }

    fn disks(&self) -> impl Iterator<Item = &Disk> {
        self.all_parts().map(|part| &part.disk).chain(&self.former)
    }

    /// Returns one of the legs.
    fn any(&mut self) -> usize {
        self.rng.below(self.parts.len() as u64) as usize
    }

    fn all_are_back(&self) {
        self.all_parts().for_each(|part| part.set_away(false));
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

    /// Checks that legs that are called in sync have what was promised, and the same.
    fn check_claims(&self, up: &Up) {
        let in_sync = up.in_sync();
        if up.life.is_over() {
            return;
        }
        let mut first: Option<(usize, Vec<u8>)> = None;
        for n in (0..self.parts.len()).filter(|&n| in_sync[n]) {
            let data = self.parts[n].disk.lock().now[..SIZE as usize].to_vec();
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

    fn blank(&mut self) -> Disk {
        Arc::new(Mutex::new(Platter::new(LEG, one_in(&mut self.rng, 2))))
    }

    /// Puts a blank disk in the place of a leg.
    fn replace(&mut self, up: &Up) {
        let (n, disk) = (self.any(), self.blank());
        let came = up.mirror.replace(up.numbers[n], plug(&self.rig, &disk, &up.life));
        self.log.push(format!("disk {n} is replaced: {}", came.is_ok()));
        if came.is_ok() {
            let part = std::mem::replace(&mut self.parts[n], Part::new(&disk));
            self.former.push(part.disk);
        }
    }

    /// Adds a disk as another leg: a blank one, or one that was a leg.
    fn add(&mut self, up: &mut Up) {
        if self.parts.len() == 4 {
            return;
        }
        let again = !self.former.is_empty() && one_in(&mut self.rng, 2);
        let disk = match again {
            true => self.former.swap_remove(self.rng.below(self.former.len() as u64) as usize),
            false => self.blank(),
        };
        // Behind all others, as long as there are numbers.
        let is_free = |n: &usize| !up.numbers.contains(n);
        let free = Some(up.mirror.legs()).filter(|n| *n < 32);
        let free = free.or((0..32).find(is_free)).unwrap();
        let at = up.numbers.iter().filter(|n| **n < free).count();
        let added = up.mirror.add(plug(&self.rig, &disk, &up.life));
        let former = if again { "a former leg" } else { "a disk" };
        self.log.push(format!("{former} is added as {at}: {added:?}"));
        let mut with = self.parts.clone();
        with.insert(at, Part::new(&disk));
        match added {
            Ok(n) => {
                assert_eq!(n, free);
                up.numbers.insert(at, n);
                self.parts = with;
                self.or.clear();
            }
            Err(_) => {
                self.former.push(disk);
                self.unless(with);
            }
        }
    }

    fn remove(&mut self, up: &mut Up) {
        let n = self.any();
        let removed = up.mirror.remove(up.numbers[n]);
        self.log.push(format!("disk {n} is removed: {}", removed.is_ok()));
        let mut without = self.parts.clone();
        let part = without.remove(n);
        match removed {
            Ok(_) => {
                up.numbers.remove(n);
                self.parts = without;
                self.former.push(part.disk);
                self.or.clear();
            }
            Err(_) => self.unless(without),
        }
    }

    /// Notes that a change that has failed may count at the next start.
    fn unless(&mut self, parts: Vec<Part>) {
        if self.record {
            self.or.push(parts);
        }
    }

    /// Makes the operator use another list of legs.
    fn turn_round(&mut self) {
        if !self.or.is_empty() {
            self.or.push(std::mem::take(&mut self.parts));
            self.parts = self.or.remove(0);
        }
    }

    /// Notes that the mirror has begun: its list of legs is known again.
    fn settled(&mut self) {
        let or = self.or.drain(..).flatten().map(|part| part.disk);
        let all: Vec<Disk> = self.former.drain(..).chain(or).collect();
        for disk in all {
            let is_it = |other: &Disk| Arc::ptr_eq(other, &disk);
            if !self.parts.iter().any(|part| is_it(&part.disk)) && !self.former.iter().any(is_it) {
                self.former.push(disk);
            }
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
        let n = self.any();
        self.log.push(format!("{ops:?} of disk {n} fail {times} times below {until}"));
        let done = one_in(&mut self.rng, 2);
        self.parts[n].disk.lock().fault = Some(Fault { ops, until, times, done });
    }

    /// Starts it as an operator does: he says that a leg may be missing only if he knows that.
    fn start(&mut self, life: &Life) -> Option<Up> {
        let record = self.record;
        // An old copy alone would be believed: it was a mirror once.
        if self.old.is_some() || !self.or.is_empty() || std::mem::take(&mut self.begun) {
            self.all_are_back();
        }
        if one_in(&mut self.rng, 2) {
            self.turn_round();
        }
        let mut turns = self.or.len();
        for _ in 0..3 + turns {
            let sure = self.sure.iter().flatten().zip(&self.parts);
            let degraded = match sure.into_iter().any(|(sure, part)| *sure && !part.is_away()) {
                true => Degraded::Always,
                false => Degraded::Known,
            };
            let up = start(&self.rig, &self.parts, life, |options| {
                (options.degraded, options.record) = (degraded, record);
            });
            match up {
                Ok(up) => {
                    (self.sure, self.old) = (None, None);
                    self.settled();
                    return Some(up);
                }
                // No client has written anything: he knows what he knew. But a start has a name of
                // its own, and some legs may have it: beginning without them next would be a start
                // that they know nothing of.
                Err(_) if life.is_over() => {
                    self.begun = true;
                    return None;
                }
                Err(error) => {
                    self.log.push(format!("refused: {error}"));
                    if turns > 0 {
                        turns -= 1;
                        self.turn_round();
                        continue;
                    }
                    if let Some(old) =
                        self.old.filter(|_| error.contains("written without each other"))
                    {
                        // Too much has happened since: the operator follows the message.
                        self.parts[old].disk.lock().fill(SIZE as usize, &[0; SIZE as usize]);
                        continue;
                    }
                    let log = self.log.join(", ");
                    assert!(self.parts.iter().any(Part::is_away), "all are there: {log}");
                    self.all_are_back();
                }
            }
        }
        panic!("refused again and again; {}", self.log.join(", "));
    }

    /// Runs one life of the mirror: until it is closed or killed.
    fn live(&mut self) {
        let dies = if one_in(&mut self.rng, 2) { self.rng.below(150) } else { NEVER };
        let life = Life::new(dies);
        let away: Vec<bool> = self.parts.iter().map(Part::is_away).collect();
        self.log.push(format!("start, away {away:?}, dies at {dies}"));
        let Some(mut up) = self.start(&life) else { return self.after_kill() };
        let mut failing = false;
        for _ in 0..self.rng.below(40) {
            match self.rng.below(20) {
                0..6 => self.write(&up),
                6..8 => self.flush(&up),
                8..12 => self.read(&up, failing),
                12 => {
                    failing = true;
                    let forever = one_in(&mut self.rng, 4);
                    self.fault(forever);
                }
                13 => {
                    let n = self.any();
                    self.parts[n].set_away(false);
                    let _ = up.mirror.take_back(up.numbers[n]);
                }
                14 => {
                    let repair = one_in(&mut self.rng, 2);
                    self.log.push(format!("check, repair {repair}"));
                    let _ = up.mirror.check(None, repair);
                }
                // While it serves.
                15 => self.replace(&up),
                16 => self.add(&mut up),
                17 => self.remove(&mut up),
                // A place that can't be read or written takes for ever.
                18 if !failing => up.resynced(),
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
        let (mirror, life, numbers) = (up.mirror.clone(), up.life.clone(), up.numbers.clone());
        up.close();
        if life.is_over() {
            // It died while it closed: what it would have said of its legs is unknown.
            self.log.push("it died meanwhile".to_string());
            return self.after_kill();
        }
        let legs = mirror.status().legs;
        self.heal();
        // If he doesn't know the legs, he is sure of none.
        self.sure = self
            .or
            .is_empty()
            .then(|| numbers.iter().map(|&n| legs[n] == LegState::InSync).collect());
    }

    fn heal(&mut self) {
        self.disks().for_each(|disk| disk.lock().fault = None);
    }

    /// Continues after a kill; the power may have failed since.
    fn after_kill(&mut self) {
        self.heal();
        if one_in(&mut self.rng, 2) {
            return;
        }
        self.log.push("power failure".to_string());
        let most = self.rng.below(3);
        for disk in self.disks().cloned().collect::<Vec<_>>() {
            let rng = &mut self.rng;
            disk.lock().power_failure(|| rng.below(2) < most);
        }
        for promise in &mut self.promises {
            promise.now = Some(promise.may[0]).filter(|_| promise.may.len() == 1);
        }
    }

    /// Changes the legs while the mirror is down.
    fn meddle(&mut self) {
        let n = self.any();
        // A disk is not thrown away unless its content is known to be elsewhere.
        let others = |sure: &Vec<bool>| {
            (0..sure.len()).any(|m| m != n && sure[m] && !self.parts[m].is_away())
        };
        let may_lose = match (self.record, &self.sure) {
            (true, Some(sure)) => others(sure),
            (true, None) => false,
            (false, _) => n != 0,
        };
        match self.rng.below(6) {
            0 if may_lose && self.old.is_none() => {
                self.log.push(format!("disk {n} is replaced"));
                let can_fua = one_in(&mut self.rng, 2);
                *self.parts[n].disk.lock() = Platter::new(LEG, can_fua);
                self.lose(n);
            }
            1 if may_lose && self.old.is_none() => {
                let Some(copy) = self.parts[n].copy.clone() else { return };
                self.old = Some(n);
                self.log.push(format!("disk {n} is what it was"));
                *self.parts[n].disk.lock() = copy;
                self.lose(n);
            }
            2 if self.record => self.parts[n].set_away(true),
            3 => self.all_are_back(),
            // A copy of a disk in use is a state that the disk never had.
            4 if self.sure.is_some() => {
                let copy = self.parts[n].disk.lock().clone();
                self.parts[n].copy = Some(copy);
            }
            _ => {}
        }
    }

    fn lose(&mut self, n: usize) {
        if let Some(sure) = &mut self.sure {
            sure[n] = false;
        }
    }

    /// Ends with all legs there, and in sync.
    fn end(&mut self) {
        self.all_are_back();
        let up = self.start(&Life::new(NEVER)).unwrap();
        while up.in_sync().contains(&false) {
            for &n in &up.numbers {
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

/// Returns the factor of the number of cases.
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
    let data = |disk: &Disk| disk.lock().now[..SIZE as usize].to_vec();
    for requests in 0.. {
        let disks = [true, false].map(|can_fua| Arc::new(Mutex::new(Platter::new(LEG, can_fua))));
        for at in 0..SECTORS {
            disks[0].lock().fill(at * SECTOR, &sector(7 + at as u32));
        }
        let full = data(&disks[0]);
        let life = Life::new(requests);
        let mut was_killed = true;
        let parts = [Part::new(&disks[0]), Part::new(&disks[1])];
        if let Ok(up) = start(&rig, &parts, &life, |_| {}) {
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
                let parts = [Part::new(&disks[0]), Part::new(&disks[1])];
                (0..2).for_each(|n| parts[n].set_away(away[n]));
                let life = Life::new(NEVER);
                let up = start(&rig, &parts, &life, |options| {
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
