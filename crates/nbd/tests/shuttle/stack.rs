//! The stack over the disks in one life of the server: queues, mirrors, stripes, partitions, and
//! the server.

use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, Driver, IoStats, Queue};
use corewise_drivers::{
    CheckpointDriver, CheckpointOptions, Crypt, CryptHeader, CryptOptions, LegState, Mirror,
    MirrorCheck, MirrorLeg, MirrorOptions, Overlay, OverlayOptions, Partition, Secret, Stripe,
};
use corewise_nbd::{Export, Options, Server};
use corewise_sync::model::choose;
use corewise_sync::{Mutex, thread};
use corewise_topology::Machine as Cpus;
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::client::{Client, Life, client};
use crate::disk::{Disk, Machine, Port};
use crate::event_counts::{EventCounts, count};
use crate::ledger::{BLOCK, BLOCKS, Content, Ledger, SIZE, content};

/// The kind of the stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    Disk,
    Partition,
    Mirror(usize),
    PartitionOfMirror,
    StripeOfMirrors,
    /// An overlay in the second disk, over a partition of the first one, which has contents.
    Overlay,
    /// A disk with checkpoints. The second disk has the record, the third one the copies.
    Checkpoints,
    Crypt,
}

/// First byte of a partition.
const START: usize = 4096;

const NAMES: [&str; 4] = ["disk0", "disk1", "disk2", "disk3"];

impl Shape {
    pub(crate) fn any() -> Shape {
        match choose(14) {
            0 => Shape::Disk,
            1 => Shape::Partition,
            2 => Shape::Mirror(3),
            3 => Shape::PartitionOfMirror,
            4 => Shape::StripeOfMirrors,
            5 | 6 => Shape::Overlay,
            7 | 8 => Shape::Checkpoints,
            9 => Shape::Crypt,
            _ => Shape::Mirror(2),
        }
    }

    pub(crate) fn disks(self) -> Vec<Disk> {
        let n = match self {
            Shape::Disk | Shape::Partition | Shape::Crypt => 1,
            Shape::Mirror(legs) => legs,
            Shape::PartitionOfMirror | Shape::Overlay => 2,
            Shape::Checkpoints => 3,
            Shape::StripeOfMirrors => 4,
        };
        let mut disks: Vec<Disk> = NAMES[..n].iter().map(|name| Disk::new(name)).collect();
        if self == Shape::Overlay {
            let base: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 0)).collect();
            let Disk { now, durable, .. } = &mut disks[0];
            for bytes in [now, durable] {
                bytes[START..][..SIZE].copy_from_slice(&base);
            }
        }
        disks
    }

    /// Returns the contents that clients find at first.
    pub(crate) fn first(self) -> Content {
        if self == Shape::Overlay { Content::Data } else { Content::Zeroes }
    }

    /// Returns true if changes that weren't flushed survive a kill. An overlay keeps which blocks
    /// are its own in memory until a flush.
    pub(crate) fn survives_kill(self) -> bool {
        self != Shape::Overlay
    }

    /// Returns the sets of disks that have to be equal when all is well.
    pub(crate) fn alike(self) -> &'static [&'static [usize]] {
        match self {
            Shape::Disk | Shape::Partition | Shape::Overlay | Shape::Checkpoints | Shape::Crypt => {
                &[]
            }
            Shape::Mirror(3) => &[&[0, 1, 2]],
            Shape::Mirror(_) | Shape::PartitionOfMirror => &[&[0, 1]],
            Shape::StripeOfMirrors => &[&[0, 1], &[2, 3]],
        }
    }
}

/// A running server, with all below it.
pub(crate) struct Up {
    shape: Shape,
    server: Server,
    device: Arc<dyn BlockDevice>,
    pub(crate) mirrors: Vec<Arc<Mirror>>,
    layer: Option<Layer>,
    /// Queues from the top down.
    queues: Vec<Arc<Queue>>,
    wq: Workqueue,
    cpus: Cpus,
    pools: WorkerPools,
}

/// A layer that has work of its own.
enum Layer {
    Overlay(Arc<Overlay>),
    Checkpoints(Arc<CheckpointDriver>),
}

struct Maker<'a> {
    machine: &'a Arc<Machine>,
    cpus: &'a Cpus,
    wq: &'a Workqueue,
    queues: Vec<Arc<Queue>>,
    mirrors: Vec<Arc<Mirror>>,
    layer: Option<Layer>,
}

impl Maker<'_> {
    fn queue(&mut self, driver: Arc<dyn Driver>) -> Arc<Queue> {
        // No histograms: they are thousands of atomics.
        let queue = Queue::builder(self.cpus, driver).iostats(IoStats::Counted).build(self.wq);
        self.queues.push(Arc::clone(&queue));
        queue
    }

    fn disk(&mut self, n: usize) -> Arc<Queue> {
        self.queue(Arc::new(Port { n, machine: Arc::clone(self.machine) }))
    }

    fn mirror(&mut self, legs: std::ops::Range<usize>) -> Result<Arc<dyn BlockDevice>, String> {
        let legs: Vec<_> = legs.map(|n| MirrorLeg::Here(self.disk(n))).collect();
        let options = MirrorOptions::new()
            .region_shift(Some(13))
            .clean_after(Duration::from_millis(20))
            .retry((choose(2) == 0).then_some(Duration::from_millis(30)));
        let mirror = Mirror::open(legs, options, self.wq).map_err(|error| error.to_string())?;
        let mirror = Arc::new(mirror);
        self.mirrors.push(Arc::clone(&mirror));
        Ok(self.queue(mirror))
    }

    fn partition(&mut self, below: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let partition = Partition::new(below, START as u64, SIZE as u64).unwrap();
        self.queue(Arc::new(partition))
    }

    fn overlay(&mut self) -> Result<Arc<dyn BlockDevice>, String> {
        let (base, file) = (self.disk(0), self.disk(1));
        let base = self.partition(base);
        let overlay = Overlay::open(file, Some(base), OverlayOptions::new(), self.wq)
            .map_err(|error| error.to_string())?;
        let overlay = Arc::new(overlay);
        self.layer = Some(Layer::Overlay(Arc::clone(&overlay)));
        Ok(self.queue(overlay))
    }

    fn checkpoints(&mut self) -> Result<Arc<dyn BlockDevice>, String> {
        let (below, record, copies) = (self.disk(0), self.disk(1), self.disk(2));
        let options = CheckpointOptions::new().block(BLOCK as u32).copies(copies);
        let opened = CheckpointDriver::open(below, record, options, self.wq);
        let (driver, faults) = opened.map_err(|error| error.to_string())?;
        assert_eq!(faults, [""; 0], "no disk damages the record");
        let driver = Arc::new(driver);
        self.layer = Some(Layer::Checkpoints(Arc::clone(&driver)));
        Ok(self.queue(driver))
    }

    /// Makes an encrypted disk without a header: a key slot's derivation would take most of the
    /// time.
    fn crypt(&mut self) -> Result<Arc<dyn BlockDevice>, String> {
        let key: Vec<u8> = (0..64).collect();
        let key = Secret::read(&key[..]).unwrap();
        let (below, options) = (self.disk(0), CryptOptions::new(CryptHeader::None));
        let crypt = Crypt::open(below, &key, options, self.wq).map_err(|e| e.to_string())?;
        Ok(self.queue(Arc::new(crypt)))
    }

    fn make(&mut self, shape: Shape) -> Result<Arc<dyn BlockDevice>, String> {
        Ok(match shape {
            Shape::Disk => self.disk(0),
            Shape::Partition => {
                let disk = self.disk(0);
                self.partition(disk)
            }
            Shape::Mirror(legs) => self.mirror(0..legs)?,
            Shape::PartitionOfMirror => {
                let mirror = self.mirror(0..2)?;
                self.partition(mirror)
            }
            Shape::StripeOfMirrors => {
                let mirrors = vec![self.mirror(0..2)?, self.mirror(2..4)?];
                self.queue(Arc::new(Stripe::new(mirrors, 8192).unwrap()))
            }
            Shape::Overlay => self.overlay()?,
            Shape::Checkpoints => self.checkpoints()?,
            Shape::Crypt => self.crypt()?,
        })
    }
}

fn put_away(
    queues: Vec<Arc<Queue>>,
    mirrors: Vec<Arc<Mirror>>,
    layer: Option<Layer>,
    pools: &WorkerPools,
) {
    // Each is drained before its lower devices are.
    for queue in queues.iter().rev() {
        queue.drain();
    }
    for mirror in &mirrors {
        mirror.settle();
    }
    drop(mirrors);
    match layer {
        Some(Layer::Overlay(overlay)) => overlay.settle(),
        Some(Layer::Checkpoints(driver)) => driver.settle(),
        None => {}
    }
    for queue in queues.into_iter().rev() {
        drop(queue);
    }
    pools.shutdown();
}

impl Up {
    /// Starts a server. `Err` is the reason of a refusal.
    pub(crate) fn start(shape: Shape, machine: &Arc<Machine>) -> Result<Up, String> {
        let cpus = Cpus::synthetic("numa:1 l3:1 core:1 pu:1").unwrap();
        let pools = WorkerPools::builder(&cpus).max_workers(4).build();
        let wq = Workqueue::builder("block").build(&pools).unwrap();
        let (queues, mirrors) = (Vec::new(), Vec::new());
        let mut maker = Maker { machine, cpus: &cpus, wq: &wq, queues, mirrors, layer: None };
        let made = maker.make(shape);
        let Maker { queues, mirrors, layer, .. } = maker;
        let device = match made {
            Ok(device) => device,
            Err(error) => {
                put_away(queues, mirrors, layer, &pools);
                return Err(error);
            }
        };
        let server = Server::new(Options::new().max_connections(4).memory(1 << 20));
        let export = Export::new("", Arc::clone(&device)).default_export(true);
        server.add_export(export).unwrap();
        Ok(Up { shape, server, device, mirrors, layer, queues, wq, cpus, pools })
    }

    /// Runs clients: one that reads all, then several at once.
    pub(crate) fn serve(
        &self,
        machine: &Machine,
        ledger: &Mutex<Ledger>,
        counts: &EventCounts,
        is_unsure: bool,
    ) {
        let door = Mutex::new(());
        let (server, door, complete) = (&self.server, &door, &|| self.complete());
        let life = Life { server, machine, ledger, door, counts, is_unsure, complete };
        if let Some(Layer::Checkpoints(driver)) = &self.layer {
            life.check_changed(driver);
        }
        if let Ok(mut first) = Client::new(&life) {
            let _over = first.read_all();
            first.leave();
        }
        thread::scope(|scope| {
            for _ in 0..=choose(2) {
                scope.spawn(|| client(&life));
            }
            if let Some(Layer::Checkpoints(driver)) = &self.layer {
                scope.spawn(|| self.take_checkpoints(driver, &life));
            }
        });
    }

    /// Takes checkpoints, reads each as it was then, and checks that all others name what changed
    /// since.
    fn take_checkpoints(&self, driver: &Arc<CheckpointDriver>, life: &Life<'_>) {
        let top = self.queues.last().unwrap();
        for _ in 0..=choose(2) {
            {
                let frozen = top.freeze();
                life.check_changed(driver);
                let name = life.ledger.lock().checkpoint_name();
                let bytes = life.machine.world.lock().disks[0].now[..SIZE].to_vec();
                if driver.take(Some(&name), &frozen).is_ok() {
                    life.ledger.lock().checkpoints.push((name, bytes));
                }
            }
            let newest = life.ledger.lock().checkpoints.last().cloned();
            let Some((name, bytes)) = newest else { continue };
            let Ok(image) = driver.image(&name) else { continue };
            let image = Queue::builder(&self.cpus, Arc::new(image)).build(&self.wq);
            for _ in 0..choose(10) {
                let at = choose(BLOCKS as u64) as usize * BLOCK;
                if let Ok(found) = image.read_at(at as u64, BLOCK) {
                    assert!(found == bytes[at..at + BLOCK], "byte {at} of checkpoint {name}");
                    count(&life.counts.images);
                }
            }
            image.drain();
        }
        let _frozen = top.freeze();
        life.check_changed(driver);
    }

    /// Writes zeroes to all blocks, durably, if they aren't zero already.
    pub(crate) fn zero(&self) {
        self.device.write_at(0, vec![0; SIZE]).and_then(|()| self.device.flush()).unwrap();
    }

    /// Returns each block as a client reads it when no disk fails.
    pub(crate) fn read(
        &self,
        machine: &Machine,
        ledger: &Mutex<Ledger>,
        counts: &EventCounts,
    ) -> Vec<Vec<u8>> {
        let door = Mutex::new(());
        let (server, door, complete) = (&self.server, &door, &Vec::new);
        let life = Life { server, machine, ledger, door, counts, is_unsure: true, complete };
        let mut client = Client::new(&life).unwrap();
        let blocks = 0..BLOCKS;
        let found = blocks.map(|block| client.read(block).unwrap().unwrap()).collect();
        client.leave();
        found
    }

    /// Waits until all legs have everything.
    pub(crate) fn wait_until_alike(&self) {
        let is_alike = |mirror: &Arc<Mirror>| {
            let status = mirror.status();
            status.to_resync == 0 && status.legs.iter().all(|leg| *leg == LegState::InSync)
        };
        while !self.mirrors.iter().all(is_alike) {
            thread::yield_now();
        }
    }

    /// Waits until no leg is being resynced, whether one is out or not.
    pub(crate) fn wait_until_settled(&self) {
        let is_settled = |mirror: &Arc<Mirror>| {
            let status = mirror.status();
            let settled = |leg: &LegState| matches!(leg, LegState::InSync | LegState::Out);
            status.to_resync == 0 && status.legs.iter().all(settled)
        };
        while !self.mirrors.iter().all(is_settled) {
            thread::yield_now();
        }
    }

    /// Returns the disks that have by themselves everything that a client reads, in the same
    /// places.
    pub(crate) fn complete(&self) -> Vec<usize> {
        match self.shape {
            Shape::Disk | Shape::Checkpoints => vec![0],
            Shape::Mirror(_) => {
                let legs = self.mirrors[0].status().legs.into_iter().enumerate();
                legs.filter(|(_, leg)| *leg == LegState::InSync).map(|(n, _)| n).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Checks the first mirror.
    pub(crate) fn check(&self, repair: bool) -> MirrorCheck {
        let mirror = &self.mirrors[0];
        assert!(mirror.check(None, repair));
        loop {
            match mirror.status().check {
                Some(check) if !check.running => return check,
                _ => thread::yield_now(),
            }
        }
    }

    /// Stops the server in order. Returns true if acknowledged changes are reported as durable.
    pub(crate) fn stop(self) -> bool {
        let Up { server, device, mirrors, layer, queues, pools, .. } = self;
        let report = server.drain(Duration::from_secs(60));
        while server.connections() != 0 {
            thread::yield_now();
        }
        drop(server);
        drop(device);
        put_away(queues, mirrors, layer, &pools);
        report.is_clean()
    }
}
