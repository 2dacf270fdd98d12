//! Checkpoints against a plain model, with a kill at each request, and a power failure after it.
//! A block that differs then from its content at a checkpoint counts as changed.
#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::platters::{Life, Platter, SECTOR, one_in, plug};
use crate::common::{Rig, Rng};
use corewise_blockmq::{BlockDeviceExt, Queue, Request};
use corewise_drivers::{CheckpointDriver, CheckpointOptions, Memory};
use corewise_sync::Mutex;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 80;
const SIZE: u64 = BLOCKS * BLOCK;
const NEVER: u64 = u64::MAX;

type Disk = Arc<Mutex<Platter>>;

struct Up {
    life: Life,
    driver: Arc<CheckpointDriver>,
    queue: Arc<Queue>,
}

impl Up {
    fn kill(self) {
        self.life.kill();
        self.queue.drain();
    }
}

/// The disks, and the content of the device at each checkpoint that may be found.
struct World {
    rig: Rig,
    data: Disk,
    record: Disk,
    then: BTreeMap<String, Vec<u8>>,
    rng: Rng,
}

impl World {
    fn new(seed: u64, can_fua: bool) -> Self {
        let needed = CheckpointDriver::record_size(SIZE, BLOCK as u32);
        let disk = |size| Arc::new(Mutex::new(Platter::new(size, can_fua)));
        let (data, record) = (disk(SIZE), disk(needed));
        World { rig: Rig::live(), data, record, then: BTreeMap::new(), rng: Rng::new(seed) }
    }

    fn open(&self, life: &Life) -> Result<Up, String> {
        let data = plug(&self.rig, &self.data, life);
        let record = plug(&self.rig, &self.record, life);
        let copies = self.rig.queue(Memory::new(16 * BLOCK).unwrap());
        let options = CheckpointOptions::new().block(BLOCK as u32).copies(copies);
        let opened = CheckpointDriver::open(data, record, options, &self.rig.wq);
        let driver = Arc::new(opened.map_err(|error| error.to_string())?.0);
        let queue = Queue::builder(&self.rig.machine, driver.clone()).build(&self.rig.wq);
        Ok(Up { life: life.clone(), driver, queue })
    }

    /// Checks the promise for each checkpoint that is there.
    fn check(&self, up: &Up) {
        let now = self.data.lock().now.clone();
        for name in up.driver.names() {
            let then = &self.then[&name];
            let stretches = up.driver.changed(&name, 0, SIZE, usize::MAX).unwrap();
            let mut at = 0;
            for (len, changed) in stretches {
                let range = at as usize..(at + len) as usize;
                assert!(
                    changed || now[range.clone()] == then[range.clone()],
                    "'{name}' lacks a change in {range:?}"
                );
                at += len;
            }
            if let Ok(image) = up.driver.image(&name) {
                let image = self.rig.queue(image);
                match image.read_at(0, SIZE as usize) {
                    Ok(found) => assert_eq!(found[..], then[..], "'{name}'"),
                    Err(error) => assert!(up.life.is_over(), "'{name}': {error}"),
                }
            }
        }
    }

    /// Makes random steps until the process is killed, or ends after some.
    fn live(&mut self, up: &Up, steps: u64) {
        for _ in 0..steps {
            if up.life.is_over() {
                return;
            }
            match self.rng.below(12) {
                0 | 1 => self.take(up),
                2 => {
                    let names = up.driver.names();
                    if !names.is_empty() {
                        let at = self.rng.below(names.len() as u64) as usize;
                        let _ = up.driver.delete(&names[at]);
                    }
                }
                3 => drop(up.queue.flush()),
                4 => {
                    up.driver.settle();
                }
                _ => self.write(up),
            }
        }
    }

    fn take(&mut self, up: &Up) {
        let name = format!("c{}", self.rng.next() % 1_000_000_000);
        let frozen = up.queue.freeze();
        // It may be found after a crash, also if taking it fails.
        self.then.insert(name.clone(), self.data.lock().now.clone());
        let _ = up.driver.take(Some(&name), &frozen);
    }

    /// Writes some ranges at once.
    fn write(&mut self, up: &Up) {
        let (tx, rx) = std::sync::mpsc::channel();
        let count = 1 + self.rng.below(4);
        for _ in 0..count {
            let sectors = SIZE / SECTOR as u64;
            let start = self.rng.below(sectors);
            let len = (1 + self.rng.below(12)).min(sectors - start) as usize * SECTOR;
            let byte = self.rng.next() as u8;
            let rq = Request::write(start * SECTOR as u64, vec![byte; len]);
            let tx = tx.clone();
            up.queue.submit_one(rq, move || tx.send(()).unwrap());
        }
        (0..count).for_each(|_| rx.recv().unwrap());
    }

    fn power_failure(&mut self) {
        let World { data, record, rng, .. } = self;
        for disk in [data, record] {
            let all = one_in(rng, 3);
            disk.lock().power_failure(|| all || one_in(rng, 2));
        }
    }
}

trait SubmitOne {
    fn submit_one(&self, rq: Request, then: impl FnOnce() + Send + 'static);
}

impl SubmitOne for Queue {
    fn submit_one(&self, rq: Request, then: impl FnOnce() + Send + 'static) {
        use corewise_blockmq::BlockDevice;
        self.submit(rq.on_complete(move |_| then()));
    }
}

/// Makes lives that are killed at the request after `kill`, then at others, and one at the end that
/// isn't.
fn lives(seed: u64, kill: u64, can_fua: bool) {
    let mut world = World::new(seed, can_fua);
    let first = world.open(&Life::new(NEVER)).unwrap();
    world.take(&first);
    world.live(&first, 4);
    first.kill();
    for kill in [kill, kill / 2 + 3, NEVER] {
        let life = Life::new(kill);
        if let Ok(up) = world.open(&life) {
            if kill == NEVER {
                world.check(&up);
            }
            world.live(&up, 24);
            if !up.life.is_over() {
                world.check(&up);
            }
            up.kill();
        } else {
            assert!(life.is_over(), "only a killed process fails to start");
        }
        if one_in(&mut world.rng, 2) {
            world.power_failure();
        }
        let found = world.open(&Life::new(NEVER)).unwrap();
        world.check(&found);
        found.kill();
    }
}

#[test]
fn a_block_that_differs_from_a_checkpoint_counts_as_changed_after_any_crash() {
    let cases = if std::env::var_os("COREWISE_LONG").is_some() { 4000 } else { 250 };
    for case in 0..cases {
        lives(case, case % 90, case % 2 == 0);
    }
}
