//! Helpers of the integration tests: a machine with workers, a PRNG, and a driver that the test
//! controls.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{
    BlockDevice, Completed, Dispatch, Driver, Geometry, Info, IoError, Op, Queue, Request, Started,
    Whole,
};
use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

/// Long enough that only a lost request takes it.
pub const STALL: Duration = Duration::from_secs(300);

/// A machine with workers, which are joined when it is dropped.
pub struct Rig {
    pub machine: Machine,
    pub pools: WorkerPools,
    pub wq: Workqueue,
}

impl Rig {
    pub fn live() -> Self {
        Self::on(Machine::live().unwrap())
    }

    pub fn synthetic(description: &str) -> Self {
        Self::on(Machine::synthetic(description).unwrap())
    }

    fn on(machine: Machine) -> Self {
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("blockmq-test").build(&pools).unwrap();
        Self { machine, pools, wq }
    }

    pub fn queue(&self, driver: impl Driver) -> Arc<Queue> {
        Queue::builder(&self.machine, Arc::new(driver)).build(&self.wq)
    }

    pub fn named(&self, name: &str, driver: impl Driver) -> Arc<Queue> {
        Queue::builder(&self.machine, Arc::new(driver)).name(name).build(&self.wq)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.pools.shutdown();
    }
}

/// xorshift64*: the same numbers from the same seed.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number from 0 to `n - 1`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Submits, and returns the receiver of the request's end.
pub fn submit(device: &dyn BlockDevice, rq: Request) -> mpsc::Receiver<Completed> {
    let (rq, done) = watched(rq);
    device.submit(rq);
    done
}

/// Returns a request whose end can be received.
pub fn watched(rq: Request) -> (Request, mpsc::Receiver<Completed>) {
    let (tx, rx) = mpsc::channel();
    (rq.on_complete(move |done| tx.send(done).unwrap()), rx)
}

type Verdict = Box<dyn Fn(Started) -> Dispatch + Send + Sync>;

/// A driver that keeps its requests until the test finishes them, or answers as the test sets.
#[derive(Clone, Default)]
pub struct Held {
    /// Requests in the order in which they were started.
    pub requests: Arc<Mutex<VecDeque<Started>>>,
    /// Offsets in blocks of 512, in the order in which they were started.
    pub order: Arc<Mutex<Vec<u64>>>,
    /// The answer to the next requests, instead of keeping them.
    pub verdict: Arc<Mutex<Option<Verdict>>>,
    pub queues: usize,
    pub merges: bool,
    /// The device's geometry; `None`: a plain one.
    pub geometry: Option<Geometry>,
}

impl Held {
    pub fn with_queues(queues: usize) -> Self {
        Self { queues, ..Self::default() }
    }

    pub fn instead(&self, f: impl Fn(Started) -> Dispatch + Send + Sync + 'static) {
        *self.verdict.lock() = Some(Box::new(f));
    }

    /// Completes the next requests instead of keeping them.
    pub fn at_once(&self) {
        self.instead(|rq| {
            rq.complete(Ok(()));
            Dispatch::Started
        });
    }

    pub fn keep(&self) {
        *self.verdict.lock() = None;
    }

    pub fn held(&self) -> usize {
        self.requests.lock().len()
    }

    pub fn order(&self) -> Vec<u64> {
        self.order.lock().clone()
    }

    /// Finishes the oldest.
    pub fn finish_one(&self, result: Result<(), IoError>) {
        let rq = self.requests.lock().pop_front().expect("something is held");
        rq.complete(result);
    }

    pub fn finish_all(&self) {
        while self.held() != 0 {
            self.finish_one(Ok(()));
        }
    }
}

impl Driver for Held {
    fn info(&self) -> Info {
        Info {
            hw_queues: self.queues.max(1),
            merges: self.merges,
            ..Info::new("held", self.geometry.unwrap_or(Geometry::new(1 << 30)))
        }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        if let Some(verdict) = &*self.verdict.lock() {
            return verdict(rq);
        }
        self.order.lock().push(rq.offset() / 512);
        self.requests.lock().push_back(rq);
        Dispatch::Started
    }
}

/// Builds a queue of four CPUs over `driver` with `depth` tags, which only steps run.
pub fn by_hand(driver: &Held, depth: u32) -> Arc<Queue> {
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    Queue::builder(&machine, Arc::new(driver.clone())).depth(depth).build_by_hand()
}

/// Steps the queues until no run is wanted any more.
pub fn settle(queues: &[&Arc<Queue>]) {
    let runs = |queue: &&Arc<Queue>| {
        (0..queue.hw_queues()).filter(|&hctx| queue.step(hctx).is_some()).count()
    };
    for _ in 0..1000 {
        if queues.iter().map(runs).sum::<usize>() == 0 {
            return;
        }
    }
    panic!("a run is wanted for ever: {queues:?}");
}

/// Makes a discard of block `n`: an easy request to tell from others.
pub fn block(n: u64) -> Request {
    Request::discard(n * 512, 512)
}

/// Passes a request on to the same place of another device.
pub fn pass_on(rq: Started, below: &Arc<dyn BlockDevice>) {
    let (offset, len) = (rq.offset(), rq.len());
    below.submit(Whole::new(rq).part(0, len, offset));
}

/// A driver that completes on the spot, and says that it may block.
#[derive(Default)]
pub struct Slow {
    /// Called by the first commit.
    pub first_commit: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Driver for Slow {
    fn info(&self) -> Info {
        Info { may_block: true, ..Info::new("slow", Geometry::new(1 << 30)) }
    }
    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        rq.complete(Ok(()));
        Dispatch::Started
    }
    fn commit(&self, _hctx: usize) {
        let first = self.first_commit.lock().take();
        first.into_iter().for_each(|first| first());
    }
}

/// A device in memory.
pub struct Ram(Mutex<Vec<u8>>, u64);

impl Ram {
    pub fn new(size: u64) -> Self {
        Self(Mutex::new(vec![0; size as usize]), size)
    }
}

impl Driver for Ram {
    fn info(&self) -> Info {
        Info {
            hw_queues: usize::MAX,
            merges: false,
            ..Info::new("ram", Geometry { can_flush: false, ..Geometry::new(self.1) })
        }
    }

    fn queue_request(&self, _hctx: usize, mut rq: Started) -> Dispatch {
        let (at, len) = (rq.offset() as usize, rq.len() as usize);
        let mut bytes = self.0.lock();
        let bytes_of = &mut bytes[at..at + len];
        match rq.op() {
            Op::Read => _ = rq.put(bytes_of),
            Op::Write => _ = rq.copy_to(bytes_of),
            Op::Discard | Op::WriteZeroes => bytes_of.fill(0),
            _ => {}
        }
        drop(bytes);
        rq.complete(Ok(()));
        Dispatch::Started
    }
}

/// The first bytes of another device.
pub struct Front(pub Arc<dyn BlockDevice>, pub u64);

impl Driver for Front {
    fn info(&self) -> Info {
        Info {
            hw_queues: usize::MAX,
            merges: false,
            ..Info::new("front", Geometry { size: self.1, ..self.0.geometry() })
        }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        pass_on(rq, &self.0);
        Dispatch::Started
    }
}
