//! Block devices of the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use corewise_blockmq::{BlockDevice, Flags, Geometry, IoError, Op, Queue, Request};
use corewise_drivers::Memory;
use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

/// A device that keeps its requests until the test ends them.
pub(crate) struct Keeper {
    pub(crate) kept: Mutex<Vec<Request>>,
    pub(crate) losses: AtomicU64,
    pub(crate) geometry: Geometry,
}

impl Keeper {
    pub(crate) fn new() -> Arc<Keeper> {
        Keeper::with(Geometry::new(1 << 40))
    }

    pub(crate) fn with(geometry: Geometry) -> Arc<Keeper> {
        Arc::new(Keeper { kept: Mutex::new(Vec::new()), losses: AtomicU64::new(0), geometry })
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.lock().len()
    }

    /// Returns operation, range and flags of the requests that it has.
    pub(crate) fn requests(&self) -> Vec<(Op, u64, u64, Flags)> {
        let kept = self.kept.lock();
        kept.iter().map(|rq| (rq.op(), rq.offset(), rq.len(), rq.flags())).collect()
    }

    /// Ends the oldest request.
    pub(crate) fn end(&self, result: Result<(), IoError>) {
        let rq = self.kept.lock().remove(0);
        rq.complete(result);
    }

    /// Ends the request at an offset.
    pub(crate) fn end_at(&self, offset: u64) {
        let mut kept = self.kept.lock();
        let place = kept.iter().position(|rq| rq.offset() == offset).expect("it has the request");
        let rq = kept.remove(place);
        drop(kept);
        rq.complete(Ok(()));
    }
}

impl BlockDevice for Keeper {
    fn name(&self) -> &str {
        "keeper"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, rq: Request) {
        self.kept.lock().push(rq);
    }

    fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }
}

/// A device in memory, which completes on the spot.
pub(crate) struct Ram {
    pub(crate) queue: Arc<Queue>,
    pub(crate) pools: WorkerPools,
}

impl Ram {
    pub(crate) fn new(size: u64) -> Ram {
        let machine = Machine::live().unwrap();
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("ublk-test").build(&pools).unwrap();
        let memory = Arc::new(Memory::new(size).unwrap());
        let queue = Queue::builder(&machine, memory).name("ram").build(&wq);
        Ram { queue, pools }
    }

    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        self.queue.clone()
    }

    pub(crate) fn end(self) {
        self.queue.drain();
        drop(self.queue);
        self.pools.shutdown();
    }
}

/// A device whose submission panics, now and then.
pub(crate) struct PanickingDevice {
    pub(crate) calls: AtomicUsize,
    pub(crate) panics: fn(usize) -> bool,
    pub(crate) block_size: u32,
}

impl BlockDevice for PanickingDevice {
    fn name(&self) -> &str {
        "panicking"
    }

    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, ..Geometry::new(1 << 30) }
    }

    fn submit(&self, rq: Request) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(!(self.panics)(call), "on purpose");
        rq.complete(Ok(()));
    }
}

/// A device whose requests go to a channel.
pub(crate) struct ChannelDevice {
    pub(crate) geometry: Geometry,
    pub(crate) to: Sender<Request>,
}

impl ChannelDevice {
    /// Starts a thread that passes the requests on, and ends when the device is dropped.
    pub(crate) fn on_a_thread(inner: Arc<dyn BlockDevice>) -> (Arc<ChannelDevice>, JoinHandle<()>) {
        let (to, requests) = mpsc::channel::<Request>();
        let geometry = inner.geometry();
        let thread = thread::spawn(move || requests.iter().for_each(|rq| inner.submit(rq)));
        (Arc::new(ChannelDevice { geometry, to }), thread)
    }
}

impl BlockDevice for ChannelDevice {
    fn name(&self) -> &str {
        "channel"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, rq: Request) {
        self.to.send(rq).expect("the thread is there");
    }
}
