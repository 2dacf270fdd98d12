//! Mirrors with a record, over legs that outlive them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, Queue};
use corewise_drivers::{LegState, Memory, Mirror, MirrorEvent, MirrorLeg, MirrorOptions};
use corewise_sync::Mutex;

use super::{Rig, Rng, STALL};

pub const REGION: u64 = 64 << 10;
pub const SIZE: u64 = 16 * REGION;
/// Bytes of a leg: the data, and the record behind it.
pub const LEG: u64 = SIZE + REGION;

/// Legs that outlive the mirrors over them.
pub struct Legs {
    pub rig: Rig,
    pub disks: Vec<Arc<dyn BlockDevice>>,
}

pub fn missing() -> MirrorLeg {
    MirrorLeg::Missing { name: "lost".to_string(), why: "not plugged in".to_string() }
}

/// A mirror with its queue and its events.
pub struct Up {
    pub mirror: Arc<Mirror>,
    pub queue: Arc<Queue>,
    pub news: mpsc::Receiver<MirrorEvent>,
}

impl Legs {
    pub fn new(n: usize) -> Self {
        let rig = Rig::live();
        let disk = |_| rig.queue(Memory::new(LEG).unwrap()) as Arc<dyn BlockDevice>;
        let disks = (0..n).map(disk).collect();
        Self { rig, disks }
    }

    pub fn try_open(&self, legs: Vec<Arc<dyn BlockDevice>>, retry: bool) -> Result<Up, String> {
        let retry = retry.then_some(Duration::from_millis(1));
        let legs = legs.into_iter().map(MirrorLeg::Here).collect();
        self.open_with(legs, |options| options.retry = retry)
    }

    pub fn open_with(
        &self,
        legs: Vec<MirrorLeg>,
        change: impl FnOnce(&mut MirrorOptions),
    ) -> Result<Up, String> {
        let (tx, news) = mpsc::channel();
        let tx = Mutex::new(tx);
        let mut options = MirrorOptions::new()
            .region_shift(Some(REGION.trailing_zeros()))
            .clean_after(Duration::from_millis(1))
            .observer(move |event: &MirrorEvent| {
                let _ = tx.lock().send(event.clone());
            });
        change(&mut options);
        let mirror = Mirror::open(legs, options, &self.rig.wq).map_err(|e| e.to_string())?;
        let mirror = Arc::new(mirror);
        let queue = Queue::builder(&self.rig.machine, mirror.clone()).build(&self.rig.wq);
        Ok(Up { mirror, queue, news })
    }

    pub fn open(&self) -> Up {
        self.try_open(self.disks.clone(), false).unwrap()
    }

    /// Makes the mirror, in sync and clean.
    pub fn made(self) -> Self {
        let up = self.open();
        up.resynced();
        up.close();
        self
    }

    /// Returns the content of disk `n`.
    pub fn copy(&self, n: usize) -> Vec<u8> {
        self.disks[n].read_at(0, LEG as usize).unwrap().to_vec()
    }

    pub fn put_back(&self, n: usize, copy: &[u8]) {
        self.disks[n].write_at(0, copy.to_vec()).unwrap();
    }

    /// Returns the data of disk `n`.
    pub fn data(&self, n: usize) -> Vec<u8> {
        self.disks[n].read_at(0, SIZE as usize).unwrap().to_vec()
    }

    pub fn alike(&self) -> bool {
        (1..self.disks.len()).all(|n| self.data(n) == self.data(0))
    }
}

impl Up {
    pub fn event(&self) -> MirrorEvent {
        self.news.recv_timeout(STALL).unwrap()
    }

    /// Waits for the end of a resync. Returns the legs that it has completed, and the bytes that it
    /// took.
    pub fn resynced(&self) -> (Vec<usize>, u64) {
        loop {
            if let MirrorEvent::ResyncEnded { legs, bytes } = self.event() {
                return (legs, bytes);
            }
        }
    }

    pub fn states(&self) -> Vec<LegState> {
        self.mirror.status().legs
    }

    pub fn fill(&self, region: u64, byte: u8) {
        self.queue.write_at(region * REGION, vec![byte; 4096]).unwrap();
    }

    /// Runs `meanwhile` while two clients write all over the mirror, and check what they have
    /// written.
    pub fn beside_clients<R>(&self, meanwhile: impl FnOnce() -> R) -> R {
        // This makes a block of a disk that has nothing yet show.
        self.queue.write_at(0, vec![1; SIZE as usize]).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = [0, 1].map(|seed| {
                let (queue, stop) = (&*self.queue, &stop);
                scope.spawn(move || client(queue, seed, stop))
            });
            // Also if it fails.
            let done = catch_unwind(AssertUnwindSafe(meanwhile));
            stop.store(true, Ordering::Relaxed);
            clients.into_iter().for_each(|client| client.join().unwrap());
            done.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Ends the mirror in order.
    pub fn close(self) {
        self.queue.drain();
        self.mirror.settle();
    }
}

/// Writes one half of the blocks, and reads them.
fn client(queue: &Queue, seed: u64, stop: &AtomicBool) {
    let mut rng = Rng::new(seed + 1);
    let mut is = vec![0x0101_0101u32; (SIZE / 8192) as usize];
    let at = |which: usize| which as u64 * 8192 + seed * 4096;
    for n in 1u32.. {
        let which = rng.below(SIZE / 8192) as usize;
        queue.write_at(at(which), n.to_le_bytes().repeat(1024)).unwrap();
        is[which] = n;
        let which = rng.below(SIZE / 8192) as usize;
        let found = queue.read_at(at(which), 4096).unwrap();
        assert!(found[..] == is[which].to_le_bytes().repeat(1024), "at {}", at(which));
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Makes a mirror without a record, over legs that are alike once this returns.
pub fn unrecorded(rig: &Rig, legs: Vec<Arc<dyn BlockDevice>>) -> Mirror {
    let options = MirrorOptions::new().record(false);
    let mirror = Mirror::open(legs, options, &rig.wq).unwrap();
    until_alike(&mirror);
    mirror
}

/// Waits until all legs are in sync.
pub fn until_alike(mirror: &Mirror) {
    while mirror.status().legs.iter().any(|leg| *leg != LegState::InSync) {
        std::thread::yield_now();
    }
}
