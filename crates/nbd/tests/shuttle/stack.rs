//! The stack over the disks in one life of the server: queues, mirrors, stripes, partitions, and
//! the server.

use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{BlockDevice, Driver, IoStats, Queue};
use corewise_drivers::{
    LegState, Mirror, MirrorCheck, MirrorLeg, MirrorOptions, Partition, Stripe,
};
use corewise_nbd::{Export, Options, Server};
use corewise_sync::model::choose;
use corewise_sync::{Mutex, thread};
use corewise_topology::Machine as Cpus;
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::client::{Client, Life, client};
use crate::disk::{Disk, Machine, Port};
use crate::event_counts::EventCounts;
use crate::ledger::{Ledger, SIZE};

/// The kind of the stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    Disk,
    Partition,
    Mirror(usize),
    PartitionOfMirror,
    StripeOfMirrors,
}

const NAMES: [&str; 4] = ["disk0", "disk1", "disk2", "disk3"];

impl Shape {
    pub(crate) fn any() -> Shape {
        match choose(8) {
            0 => Shape::Disk,
            1 => Shape::Partition,
            2 => Shape::Mirror(3),
            3 => Shape::PartitionOfMirror,
            4 => Shape::StripeOfMirrors,
            _ => Shape::Mirror(2),
        }
    }

    pub(crate) fn disks(self) -> Vec<Disk> {
        let n = match self {
            Shape::Disk | Shape::Partition => 1,
            Shape::Mirror(legs) => legs,
            Shape::PartitionOfMirror => 2,
            Shape::StripeOfMirrors => 4,
        };
        NAMES[..n].iter().map(|name| Disk::new(name)).collect()
    }

    /// Returns the sets of disks that have to be equal when all is well.
    pub(crate) fn alike(self) -> &'static [&'static [usize]] {
        match self {
            Shape::Disk | Shape::Partition => &[],
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
    /// Queues from the top down.
    queues: Vec<Arc<Queue>>,
    pools: WorkerPools,
}

struct Maker<'a> {
    machine: &'a Arc<Machine>,
    cpus: &'a Cpus,
    wq: &'a Workqueue,
    queues: Vec<Arc<Queue>>,
    mirrors: Vec<Arc<Mirror>>,
}

impl Maker<'_> {
    fn queue(&mut self, driver: Arc<dyn Driver>) -> Arc<dyn BlockDevice> {
        // No histograms: they are thousands of atomics.
        let queue = Queue::builder(self.cpus, driver).iostats(IoStats::Counted).build(self.wq);
        self.queues.push(Arc::clone(&queue));
        queue
    }

    fn disk(&mut self, n: usize) -> Arc<dyn BlockDevice> {
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
        let partition = Partition::new(below, 4096, SIZE as u64).unwrap();
        self.queue(Arc::new(partition))
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
        })
    }
}

fn put_away(queues: Vec<Arc<Queue>>, mirrors: Vec<Arc<Mirror>>, pools: &WorkerPools) {
    // Each is drained before its lower devices are.
    for queue in queues.iter().rev() {
        queue.drain();
    }
    for mirror in &mirrors {
        mirror.settle();
    }
    drop(mirrors);
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
        let mut maker = Maker { machine, cpus: &cpus, wq: &wq, queues, mirrors };
        let made = maker.make(shape);
        let Maker { queues, mirrors, .. } = maker;
        let device = match made {
            Ok(device) => device,
            Err(error) => {
                put_away(queues, mirrors, &pools);
                return Err(error);
            }
        };
        let server = Server::new(Options::new().max_connections(4).memory(1 << 20));
        let export = Export::new("", Arc::clone(&device)).default_export(true);
        server.add_export(export).unwrap();
        Ok(Up { shape, server, device, mirrors, queues, pools })
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
        if let Ok(mut first) = Client::new(&life) {
            let _over = first.read_all();
            first.leave();
        }
        thread::scope(|scope| {
            for _ in 0..=choose(2) {
                scope.spawn(|| client(&life));
            }
        });
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
        let blocks = 0..crate::ledger::BLOCKS;
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
            Shape::Disk => vec![0],
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
        let Up { server, device, mirrors, queues, pools, .. } = self;
        let report = server.drain(Duration::from_secs(60));
        while server.connections() != 0 {
            thread::yield_now();
        }
        drop(server);
        drop(device);
        put_away(queues, mirrors, &pools);
        report.is_clean()
    }
}
