//! Sequential reads. A fixed number is in flight, and each starts the next one in its completion.
//!
//! The completion function runs the hardware queue, and then submits the next read. So all work
//! happens on the completion threads, and nothing waits for another thread to be woken.

use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{AlignedBuf, BlockDevice, Buffer, Completed, Payload, Queue, Request};
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::{CachePadded, Countdown, Mutex, Parker, time};
use corewise_topology::{CpuId, current_cpu};

use crate::blockmq::recheck::Run;
use crate::error::BenchError;
use crate::meter::between;

/// The parameters of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    /// Number of reads.
    pub reads: u64,
    /// Bytes of each read.
    pub bytes: u32,
    /// Reads in flight.
    pub in_flight: u32,
    /// Largest number of timed runs of the hardware queue, for each read in flight.
    pub samples: usize,
}

/// A stream of reads.
pub(super) struct Stream<R> {
    queue: Arc<Queue>,
    run: R,
    plan: Plan,
    /// Bytes of the device.
    size: u64,
    /// The hardware queue of each CPU.
    hctx_of: Box<[usize]>,
    /// A: the number of the next read; Relaxed, since no other memory depends on it.
    next: CachePadded<AtomicU64>,
    /// A: true once runs of the hardware queue are timed; Relaxed, since a thread that misses it
    /// sees it soon.
    timed: AtomicBool,
    /// Reads in flight that haven't ended.
    ended: Countdown,
    /// A: true once a read has failed; Relaxed, ordered by `ended`.
    failed: AtomicBool,
    /// L: is the lock; guards the times of the lanes that have ended.
    noted: Mutex<Vec<u32>>,
}

/// One of the reads in flight. Each lane has its own count of references, so a request that takes
/// one writes no line that all lanes write.
struct Lane<R>(Arc<Stream<R>>);

impl<R: Run> Stream<R> {
    /// Begins to read. Completion threads must not keep the caller's thread from its CPU before all
    /// reads are in flight.
    pub(super) fn begin(queue: &Arc<Queue>, run: R, plan: Plan) -> Arc<Stream<R>> {
        let mut hctx_of = Vec::new();
        for hctx in 0..queue.hw_queues() {
            for &cpu in queue.hctx_cpus(hctx) {
                let cpu = cpu.index();
                hctx_of.resize(hctx_of.len().max(cpu + 1), 0);
                hctx_of[cpu] = hctx;
            }
        }
        let stream = Arc::new(Stream {
            queue: Arc::clone(queue),
            run,
            plan,
            size: queue.geometry().size,
            hctx_of: hctx_of.into(),
            next: CachePadded::new(AtomicU64::new(0)),
            timed: AtomicBool::new(false),
            ended: Countdown::new(plan.in_flight as usize),
            failed: AtomicBool::new(false),
            noted: Mutex::new(Vec::new()),
        });
        for _ in 0..plan.in_flight {
            let lane = Arc::new(Lane(Arc::clone(&stream)));
            // Zeroed, since the device leaves it as it is.
            let buffer = AlignedBuf::zeroed(plan.bytes as usize, 1);
            lane.read(buffer, Vec::with_capacity(plan.samples));
        }
        stream
    }

    /// Sleeps for this time, and until some reads that began meanwhile have completed. Returns the
    /// number of reads that began, and the time.
    pub(super) fn watch(&self, length: Duration) -> (usize, Duration) {
        let begun = || self.next.load(Ordering::Relaxed);
        let (before, began) = (begun(), time::now());
        loop {
            Parker::new().park_timeout(length);
            let reads = begun() - before;
            if reads > 2 * u64::from(self.plan.in_flight) || self.failed.load(Ordering::Relaxed) {
                return (reads as usize, time::now() - began);
            }
        }
    }

    /// Begins to time each run of the hardware queue from here on. The clock costs as much as some
    /// runs.
    pub(super) fn time(&self) {
        self.timed.store(true, Ordering::Relaxed);
    }

    /// Stops the stream: no more reads begin.
    pub(super) fn end(&self) {
        // The number is more than any stream reads, and far from an overflow.
        self.next.store(u64::MAX / 2, Ordering::Relaxed);
    }

    /// Waits until all reads have completed. Returns the time of each timed run of the hardware
    /// queue in nanoseconds.
    ///
    /// # Errors
    /// A read failed.
    pub(super) fn wait(&self) -> Result<Vec<u32>, BenchError> {
        self.ended.wait();
        match self.failed.load(Ordering::Relaxed) {
            true => Err(BenchError::WrongAnswer),
            false => Ok(std::mem::take(&mut *self.noted.lock())),
        }
    }

    fn here(&self) -> usize {
        let cpu = current_cpu().unwrap_or(CpuId::new(0)).index();
        self.hctx_of.get(cpu).copied().unwrap_or(0)
    }
}

impl<R: Run> Lane<R> {
    /// Submits the next read, or ends the lane.
    fn read(self: Arc<Self>, mut buffer: AlignedBuf, noted: Vec<u32>) {
        let stream = &self.0;
        let number = stream.next.fetch_add(1, Ordering::Relaxed);
        if number >= stream.plan.reads {
            return self.over(noted);
        }
        let bytes = u64::from(stream.plan.bytes);
        let blocks = (stream.size / bytes).max(1);
        let (hctx, lane) = (stream.here(), Arc::clone(&self));
        buffer.clear();
        let rq = Request::read_into(number % blocks * bytes, bytes as usize, buffer)
            .on_complete(move |done| lane.completed(done, hctx, noted));
        stream.queue.submit(rq);
    }

    /// Runs the hardware queue through which the read came, and goes on to the next.
    fn completed(self: Arc<Self>, done: Completed, hctx: usize, mut noted: Vec<u32>) {
        let stream = &self.0;
        let began = stream.timed.load(Ordering::Relaxed).then(time::now);
        stream.run.run(&stream.queue, hctx);
        if let Some(began) = began {
            if noted.len() < noted.capacity() {
                noted.push(u32::try_from(between(began, time::now())).unwrap_or(u32::MAX));
            }
        }
        match (done.result, done.payload) {
            (Ok(()), Payload::One(Buffer::Aligned(buffer))) => self.read(buffer, noted),
            _ => {
                stream.failed.store(true, Ordering::Relaxed);
                self.over(noted);
            }
        }
    }

    fn over(self: Arc<Self>, noted: Vec<u32>) {
        self.0.noted.lock().extend(noted);
        self.0.ended.done();
    }
}
