//! Overlays against a plain model, through kills and power failures at each request to their file,
//! and damage to their headers and maps. Flushed data is never lost, and no content appears that
//! nobody wrote.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::platters::{Fault, Life, Platter, SECTOR, one_in, plug};
use crate::common::{Rig, Rng};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, IoErrorKind, Op, Queue, Request};
use corewise_drivers::{Memory, Overlay, OverlayOptions};
use corewise_sync::Mutex;

const SIZE: u64 = 64 << 10;
/// Bytes of the base: it ends in the middle of a block.
const BASE: u64 = SIZE - (10 << 10);
const SECTORS: usize = SIZE as usize / SECTOR;
/// Bytes of the headers, the directory and the map.
const META: usize = 16 << 10;
/// Offset of the page of the map.
const MAP: usize = 12 << 10;
/// Number of requests that no life here reaches.
const NEVER: u64 = u64::MAX;

fn sector(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(SECTOR / 4)
}

fn version(bytes: &[u8]) -> u32 {
    assert!(bytes.chunks(4).all(|word| word == &bytes[..4]), "a torn sector");
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

fn base_version(at: usize) -> u32 {
    if at < BASE as usize / SECTOR { 1_000_000 + at as u32 } else { 0 }
}

struct World {
    rig: Rig,
    base: Arc<dyn BlockDevice>,
}

impl World {
    fn new() -> Self {
        let rig = Rig::live();
        let base = rig.named("base", Memory::new(BASE).unwrap());
        for at in 0..BASE as usize / SECTOR {
            base.write_at((at * SECTOR) as u64, sector(base_version(at))).unwrap();
        }
        Self { rig, base }
    }

    fn disk(&self, can_fua: bool) -> Arc<Mutex<Platter>> {
        let size = Overlay::file_size(SIZE, None).unwrap();
        Arc::new(Mutex::new(Platter::new(size, can_fua)))
    }

    fn open(&self, disk: &Arc<Mutex<Platter>>, life: &Life) -> Result<Arc<Queue>, String> {
        let file = plug(&self.rig, disk, life);
        let options = OverlayOptions::new().size(Some(SIZE));
        let overlay = Overlay::open(file, Some(self.base.clone()), options, &self.rig.wq);
        Ok(self.rig.named("overlay", overlay.map_err(|error| error.to_string())?))
    }
}

/// The contents that a sector may have.
#[derive(Clone)]
struct Allowed {
    /// Contents that a read may return now.
    now: Vec<u32>,
    /// Contents that a crash may leave.
    durable: Vec<u32>,
}

struct Model(Vec<Allowed>);

impl Model {
    fn new() -> Self {
        let of = |at| Allowed { now: vec![base_version(at)], durable: vec![base_version(at)] };
        Self((0..SECTORS).map(of).collect())
    }

    /// Notes a change to `version`; `Ok` has whether it was durable.
    fn changed(&mut self, at: usize, len: usize, version: u32, ended: Result<bool, ()>) {
        for sector in &mut self.0[at..at + len] {
            sector.durable.push(version);
            match ended {
                Ok(true) => (sector.now, sector.durable) = (vec![version], vec![version]),
                Ok(false) => sector.now = vec![version],
                Err(()) => sector.now.push(version),
            }
        }
    }

    /// Notes that sectors were given up, or perhaps not.
    fn discarded(&mut self, at: usize, len: usize) {
        for sector in &mut self.0[at..at + len] {
            sector.now.push(0);
            sector.durable.push(0);
        }
    }

    fn flushed(&mut self) {
        self.0.iter_mut().for_each(|sector| sector.durable.clone_from(&sector.now));
    }

    fn crashed(&mut self, power: bool) {
        for sector in &mut self.0 {
            let old = if power { Vec::new() } else { std::mem::take(&mut sector.now) };
            sector.now = [sector.durable.clone(), old].concat();
        }
    }

    fn check(&mut self, queue: &Queue, what: &str) {
        let data = queue.read_at(0, SIZE as usize).unwrap();
        for (at, sector) in self.0.iter_mut().enumerate() {
            let found = version(&data[at * SECTOR..(at + 1) * SECTOR]);
            assert!(
                sector.now.contains(&found),
                "{what}: sector {at} has {found}, not {:?}",
                sector.now
            );
            sector.now = vec![found];
            sector.durable.push(found);
        }
    }
}

/// Makes random requests until one fails, or `most` of them. Returns true if none failed.
fn work(queue: &Queue, model: &mut Model, rng: &mut Rng, next: &mut u32, most: usize) -> bool {
    let can_fua = queue.geometry().can_fua;
    for _ in 0..most {
        let at = rng.below(SECTORS as u64) as usize;
        let len = 1 + rng.below((SECTORS - at).min(24) as u64) as usize;
        let (offset, bytes) = ((at * SECTOR) as u64, (len * SECTOR) as u64);
        *next += 1;
        let (rq, fua) = match rng.below(8) {
            0 => {
                if queue.flush().is_err() {
                    return false;
                }
                model.flushed();
                continue;
            }
            1 => {
                model.discarded(at, len);
                if queue.discard(offset, bytes).is_err() {
                    return false;
                }
                continue;
            }
            2 => (Request::write_zeroes(offset, bytes), can_fua && one_in(rng, 3)),
            _ => (Request::write(offset, sector(*next).repeat(len)), can_fua && one_in(rng, 3)),
        };
        let version = if rq.op() == Op::Write { *next } else { 0 };
        let result = queue.execute(if fua { rq.fua() } else { rq }).result;
        model.changed(at, len, version, result.as_ref().map(|()| fua).map_err(|_| ()));
        if result.is_err() {
            return false;
        }
    }
    true
}

/// Lets an overlay live several times, the first of them for `requests` requests to its file.
/// Returns true if that life wasn't cut short.
fn lives(world: &World, seed: u64, requests: u64) -> bool {
    let mut rng = Rng::new(seed);
    let (disk, mut model, mut next) = (world.disk(seed % 3 != 0), Model::new(), 0);
    let mut survived = true;
    for n in 0..3 {
        let life = Life::new(if n == 0 { requests } else { rng.below(60) });
        let opened = world.open(&disk, &life);
        let done = opened.is_ok_and(|queue| {
            let done = work(&queue, &mut model, &mut rng, &mut next, 25);
            queue.drain();
            done
        });
        survived &= n != 0 || done;
        life.kill();
        let power = one_in(&mut rng, 2);
        if power {
            let all = rng.below(3);
            disk.lock().power_failure(|| all == 0 || all == 1 && one_in(&mut rng, 2));
        }
        model.crashed(power);
        let life = Life::new(NEVER);
        let queue = world.open(&disk, &life).unwrap();
        model.check(&queue, &format!("seed {seed}, {requests} requests, life {n}"));
        if one_in(&mut rng, 2) {
            queue.flush().unwrap();
            model.flushed();
        }
        queue.drain();
        life.kill();
        model.crashed(false);
    }
    survived
}

#[test]
fn a_crash_at_any_request_to_the_file_loses_nothing_that_was_flushed() {
    let world = World::new();
    let seeds = if std::env::var_os("COREWISE_LONG").is_some() { 200 } else { 3 };
    for seed in 0..seeds {
        let mut requests = 0;
        while !lives(&world, seed, requests) {
            requests += 1;
            assert!(requests < 1000);
        }
        assert!(requests > 10, "{requests} requests");
    }
}

#[test]
fn after_a_failed_sync_no_flush_succeeds_until_the_overlay_is_opened_again() {
    let world = World::new();
    let (disk, life) = (world.disk(true), Life::new(NEVER));
    let queue = world.open(&disk, &life).unwrap();
    queue.write_at(0, sector(1)).unwrap();
    let fault = Fault { ops: vec![Op::Flush], until: 0, times: 1, done: false };
    disk.lock().fault = Some(fault);
    for _ in 0..2 {
        assert_eq!(queue.flush().unwrap_err().kind(), IoErrorKind::Io(5));
    }
    let fua = queue.execute(Request::write(8192, sector(2)).fua());
    assert_eq!(fua.result.unwrap_err().kind(), IoErrorKind::Io(5));
    drop(queue);
    let queue = world.open(&disk, &life).unwrap();
    queue.flush().unwrap();
}

#[test]
fn a_page_that_could_not_be_written_is_written_by_the_next_flush() {
    let world = World::new();
    let (disk, life) = (world.disk(true), Life::new(NEVER));
    let queue = world.open(&disk, &life).unwrap();
    queue.write_at(0, sector(1)).unwrap();
    let fault = Fault { ops: vec![Op::Write], until: META as u64, times: 1, done: false };
    disk.lock().fault = Some(fault);
    assert_eq!(queue.flush().unwrap_err().kind(), IoErrorKind::Io(5));
    queue.flush().unwrap();
    drop(queue);
    disk.lock().power_failure(|| true);
    let queue = world.open(&disk, &life).unwrap();
    assert_eq!(version(&queue.read_at(0, SECTOR).unwrap()), 1);
}

#[test]
fn a_change_whose_copy_fails_leaves_the_block_as_it_was() {
    let world = World::new();
    let (disk, life) = (world.disk(true), Life::new(NEVER));
    let queue = world.open(&disk, &life).unwrap();
    let fault = Fault { ops: vec![Op::Write], until: SIZE + META as u64, times: 1, done: true };
    disk.lock().fault = Some(fault);
    let error = queue.write_at(512, sector(1)).unwrap_err();
    assert_eq!((error.kind(), error.range()), (IoErrorKind::Io(5), Some(512..1024)));
    Model::new().check(&queue, "after the failure");
    queue.write_at(512, sector(2)).unwrap();
    assert_eq!(version(&queue.read_at(0, SECTOR).unwrap()), base_version(0));
    assert_eq!(version(&queue.read_at(512, SECTOR).unwrap()), 2);
}

/// Makes an overlay with some own blocks, all flushed.
fn used(world: &World) -> (Platter, Model) {
    let (disk, life, mut model) = (world.disk(true), Life::new(NEVER), Model::new());
    let queue = world.open(&disk, &life).unwrap();
    work(&queue, &mut model, &mut Rng::new(9), &mut 0, 20);
    queue.flush().unwrap();
    model.flushed();
    queue.drain();
    drop(queue);
    let platter = disk.lock().clone();
    (platter, model)
}

#[test]
fn damage_to_a_header_or_the_map_is_told_and_never_believed() {
    let world = World::new();
    let (good, _) = used(&world);
    let reads = |platter: Platter| {
        let (disk, life) = (Arc::new(Mutex::new(platter)), Life::new(NEVER));
        let queue = world.open(&disk, &life)?;
        queue.read_at(0, SIZE as usize).map_err(|error| error.to_string())
    };
    let content = reads(good.clone()).unwrap();
    let flipped = |bits: &[usize]| {
        let mut bad = good.clone();
        bits.iter().for_each(|bit| bad.now[bit / 8] ^= 1 << (bit % 8));
        reads(bad)
    };
    let long = std::env::var_os("COREWISE_LONG").is_some();
    let mut told = 0;
    for bit in (0..META * 8).step_by(if long { 1 } else { 331 }) {
        match flipped(&[bit]) {
            Ok(read) => assert_eq!(read, content, "bit {bit}"),
            Err(error) => {
                assert!(error.contains("map is damaged"), "{error}");
                told += 1;
            }
        }
    }
    assert!(told != 0);
    let error = flipped(&[100, 4096 * 8 + 200]).unwrap_err();
    assert!(error.contains("both copies of the header"), "{error}");
}

#[test]
fn a_zeroed_sector_of_the_file_is_told_wherever_it_says_what_is_own() {
    let world = World::new();
    let (good, _) = used(&world);
    let read = |platter: &Platter| {
        let (disk, life) = (Arc::new(Mutex::new(platter.clone())), Life::new(NEVER));
        let queue = world.open(&disk, &life)?;
        queue.read_at(0, SIZE as usize).map_err(|error| error.to_string())
    };
    let content = read(&good).unwrap();
    let zeroed = |range: std::ops::Range<usize>| {
        let mut bad = good.clone();
        bad.fill(range.start, &vec![0; range.len()]);
        read(&bad)
    };
    for at in (0..META).step_by(SECTOR) {
        match zeroed(at..at + SECTOR) {
            Ok(read) => assert!(at < 8192 && read == content, "sector at {at}"),
            Err(error) => assert!(at >= 8192 && error.contains("map is damaged"), "{at}: {error}"),
        }
    }
    assert!(zeroed(8192..MAP).unwrap_err().contains("page of its directory at byte 8192"));
    for range in [MAP..META, 4096..META, 8192..META] {
        assert!(zeroed(range.clone()).unwrap_err().contains("map is damaged"), "{range:?}");
    }
    // An overlay that gives its blocks up has a map again.
    let mut bad = good.clone();
    bad.fill(8192, &[0; META - 8192]);
    let disk = Arc::new(Mutex::new(bad));
    let file = plug(&world.rig, &disk, &Life::new(NEVER));
    let options = OverlayOptions::new();
    let overlay = Overlay::open(file, Some(world.base.clone()), options, &world.rig.wq).unwrap();
    overlay.reset().unwrap();
    let queue = world.rig.named("overlay", overlay);
    Model::new().check(&queue, "after the reset");
}

#[test]
fn an_overlay_in_another_format_is_told_and_left_alone() {
    let world = World::new();
    let (mut old, _) = used(&world);
    for copy in [0, 4096] {
        old.fill(copy, b"cw-over1");
    }
    let disk = Arc::new(Mutex::new(old));
    let error = world.open(&disk, &Life::new(NEVER)).err().unwrap();
    assert!(error.contains("format of another version"), "{error}");
}

#[test]
fn a_map_of_another_overlay_a_short_file_and_another_base_are_refused() {
    let world = World::new();
    let ((good, _), (other, _)) = (used(&world), used(&world));
    let life = Life::new(NEVER);
    let mut mixed = good.clone();
    mixed.fill(MAP, &other.now[MAP..META]);
    let disk = Arc::new(Mutex::new(mixed));
    let error = world.open(&disk, &life).unwrap().read_at(0, 512).unwrap_err();
    assert!(error.to_string().contains("map is damaged"), "{error}");

    let mut short = Platter::new(good.now.len() as u64 - 4096, true);
    let len = short.now.len();
    short.fill(0, &good.now[..len]);
    let error = world.open(&Arc::new(Mutex::new(short)), &life).err().unwrap();
    assert!(error.contains("truncated"), "{error}");

    let mut foreign = world.disk(true).lock().clone();
    foreign.fill(5000, b"something else");
    let error = world.open(&Arc::new(Mutex::new(foreign)), &life).err().unwrap();
    assert!(error.contains("other data"), "{error}");

    let disk = Arc::new(Mutex::new(good));
    world.base.write_at(512, sector(7)).unwrap();
    let error = world.open(&disk, &life).err().unwrap();
    assert!(error.contains("not the base") && error.contains("other content"), "{error}");
    world.base.write_at(512, sector(base_version(1))).unwrap();
    world.open(&disk, &life).unwrap();
}
