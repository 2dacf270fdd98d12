//! Random reads and writes through the whole block layer. A fixed number is in flight, and each
//! starts the next one in its completion.

use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{
    AlignedBuf, BlockDevice, BlockDeviceExt, Buffer, BufferPool, Completed, Driver, Payload, Queue,
    Request,
};
use corewise_drivers::{FileDriver, FileOptions, Memory, Null, NullOptions, OpenErrorKind};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::thread::{self, Builder};
use corewise_sync::time::{self, Stamp};
use corewise_sync::{Countdown, Mutex, Parker, sys};
use corewise_topology::{CpuId, CpuSet, Machine};
use corewise_workqueue::Workqueue;
use fastrand::Rng;

use crate::bench::{Cases, NOT_SIMULATED, Workload, count, variants};
use crate::blockmq::disk::Disk;
use crate::blockmq::setup::Layer;
use crate::blockmq::{base, fio};
use crate::meter::{Meter, percentiles};
use crate::{BenchError, Job, Line};

/// Bytes of the devices in memory.
pub(super) const SIZE: u64 = 256 << 20;
/// Largest number of samples that a job records.
const SAMPLES: usize = 1 << 20;
/// Divisor of a pass's length for the pass that warms up.
pub(super) const WARM: u32 = 10;

/// Devices that are read and written: nothing, memory, or a file on a disk, past the page cache.
const DEVICES: [&str; 3] = ["null", "memory", "file"];

/// Random requests of one block each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    /// The device, one of [`DEVICES`].
    pub(super) device: &'static str,
    /// True for writes, false for reads.
    pub(super) writes: bool,
    /// Requests in flight for each job.
    pub(super) depth: u16,
    /// Jobs. Each begins on the next CPU in turn.
    pub(super) jobs: u16,
}

impl Load {
    pub(super) fn of(parts: &[&str]) -> Option<Load> {
        let [device, mix, depth, jobs] = parts else { return None };
        let device = DEVICES.into_iter().find(|known| known == device)?;
        let is_right = matches!(*mix, "randread" | "randwrite") && count(depth) && count(jobs);
        let load = |depth, jobs| Load { device, writes: *mix == "randwrite", depth, jobs };
        is_right.then_some(load(depth.parse().ok()?, jobs.parse().ok()?))
    }

    /// Returns the number of requests in flight in all.
    fn in_flight(self) -> u32 {
        u32::from(self.depth) * u32::from(self.jobs)
    }
}

/// The load of the headlines, as it stands behind the device in a case's name.
pub(super) const HEADLINE: &str = "randread/32/1";

/// Requests in flight for each job, and jobs.
const LOADS: [(u16, u16); 6] = [(1, 1), (32, 1), (128, 1), (1, 4), (32, 4), (128, 4)];

/// Random reads and writes.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::Fit(
        |parts| Load::of(parts).is_some(),
        |_| {
            let mut all = Vec::new();
            for device in DEVICES {
                for mix in ["randread", "randwrite"] {
                    all.extend(LOADS.map(|(depth, jobs)| format!("{device}/{mix}/{depth}/{jobs}")));
                }
            }
            all
        },
    ),
    quick: |parts, _| parts[1..].join("/") == HEADLINE && parts[0] != "memory",
    numbers: |job, parts, on| {
        base(job, on);
        // Only runs that count allocations have this limit. Others run for their length.
        job.items = if parts[0] == "file" { 20_000 } else { 1_000_000 };
    },
    variants: |_, _| [variants(&["corewise"], true), variants(&["fio"], false)].concat(),
    run: |job, meter| {
        let Some(load) = Load::of(&job.parts()) else { return job.unknown() };
        let is_file = load.device == "file";
        match job.runtime.as_str() {
            runtime if !sys::KERNEL_THREADS && (is_file || runtime == "fio") => {
                Ok(job.cannot(NOT_SIMULATED))
            }
            "fio" => fio::run(job, load),
            "corewise" => run(job, load, meter),
            _ => job.unknown(),
        }
    },
};

/// Runs a job on Corewise.
fn run(job: &Job, load: Load, meter: &mut Meter) -> Result<Line, BenchError> {
    let disk = (load.device == "file").then(Disk::find).transpose()?;
    let machine = Machine::live()?;
    let bench = match Bench::new(&machine, job, load, disk.as_ref()) {
        Err(BenchError::File(error)) if matches!(error.kind(), OpenErrorKind::NotDirect { .. }) => {
            return Ok(job.cannot(&error.to_string()));
        }
        other => other?,
    };
    let plan = Plan::new(job, load);
    bench.pass(Plan { length: plan.length / WARM, ..plan }).run(&machine)?;
    // The clock costs much compared with a fast request, so latencies of fast devices have a
    // pass of their own. On a file, peers read the clock for each request, and this pass does too.
    let timed = load.device == "file" && !job.count;
    let pass = bench.pass(Plan { timed, ..plan });
    let mut done = Done::default();
    meter.pass_of(|| {
        done = pass.run(&machine)?;
        Ok((done.requests as usize, done.took))
    })?;
    if !job.count && !timed {
        let plan = Plan { length: plan.length / 4, timed: true, ..plan };
        done = bench.pass(plan).run(&machine)?;
    }
    let mut line = job.line();
    percentiles(&mut line, "latency", &mut done.noted, &[50.0, 99.0, 99.9]);
    let mut line = meter.finish(line);
    if let Some(rate) = line.metrics.get("items_per_second").copied() {
        if load.device == "null" && load.jobs == 1 {
            line.set("overhead_ns_per_request", 1e9 / rate);
        }
    }
    Ok(line)
}

/// A queue over the device, and the memory of the requests.
struct Bench {
    layer: Layer,
    buffers: BufferPool,
}

impl Bench {
    fn new(
        machine: &Machine,
        job: &Job,
        load: Load,
        disk: Option<&Disk>,
    ) -> Result<Bench, BenchError> {
        let driver = |wq: &Workqueue| -> Result<Arc<dyn Driver>, BenchError> {
            Ok(match (load.device, disk) {
                ("file", Some(disk)) => {
                    let queues = machine.online().len().min(load.jobs.into());
                    let options = FileOptions::new(disk.path()).direct(true).queues(queues);
                    let options = options.depth(load.in_flight());
                    Arc::new(FileDriver::open(options, wq).map_err(BenchError::File)?)
                }
                ("memory", _) => {
                    let memory = Memory::new(SIZE);
                    Arc::new(
                        memory.map_err(|source| BenchError::Unusable { what: "memory", source })?,
                    )
                }
                _ => {
                    // SAFETY: all reads here go to a pool's memory, which begins as zeroes.
                    let options = unsafe { NullOptions::new(SIZE).leave_reads() };
                    Arc::new(Null::with(options).map_err(BenchError::Thread)?)
                }
            })
        };
        let layer = Layer::new(machine, None, driver)?;
        let buffers = BufferPool::new(load.in_flight(), job.bytes as usize, 4096);
        let bench = Bench { layer, buffers };
        // A simulated machine has no pages that appear at the first touch, and would pay for each
        // line.
        if load.device == "memory" && sys::KERNEL_THREADS {
            bench.fill()?;
        }
        Ok(bench)
    }

    /// Touches each page of the device's memory.
    fn fill(&self) -> Result<(), BenchError> {
        let piece = bytes::Bytes::from(vec![1; 1 << 20]);
        for at in (0..SIZE).step_by(piece.len()) {
            self.layer.queue.write_at(at, piece.clone()).map_err(|_| BenchError::WrongAnswer)?;
        }
        Ok(())
    }

    /// Creates a pass with everything that requests need, so that they allocate nothing.
    fn pass(&self, plan: Plan) -> Pass {
        let shared = Arc::new(Shared {
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            ended: Countdown::new(plan.load.in_flight() as usize),
            done: Mutex::new(Done::default()),
        });
        let lanes = |job: u64| -> Vec<Box<Lane>> {
            let seed = |lane| job << 16 | lane;
            let lane = |n| Box::new(self.lane(&shared, plan, seed(n)));
            (0..plan.load.depth.into()).map(lane).collect()
        };
        let lanes = (0..plan.load.jobs.into()).map(lanes).collect();
        Pass { shared, lanes, plan }
    }

    fn lane(&self, shared: &Arc<Shared>, plan: Plan, seed: u64) -> Lane {
        let queue = &self.layer.queue;
        let room = if plan.timed { SAMPLES / usize::from(plan.load.depth) } else { 0 };
        let mut buffer = self.buffers.get().expect("there is one for each lane");
        let mut rng = Rng::with_seed(seed);
        let mut bytes = vec![0; plan.bytes as usize];
        rng.fill(&mut bytes);
        buffer.extend_from_slice(&bytes);
        Lane {
            blocks: (queue.geometry().size / u64::from(plan.bytes)) as usize,
            target: Arc::new(Target(Arc::clone(queue))),
            shared: Arc::clone(shared),
            plan,
            rng,
            requests: 0,
            began: Stamp::default(),
            noted: Vec::with_capacity(room),
            buffer: Some(buffer),
        }
    }
}

/// A pass that is ready to begin, with each job's requests in flight.
struct Pass {
    shared: Arc<Shared>,
    // Boxed beforehand: a pass allocates nothing for a request.
    #[allow(clippy::vec_box)]
    lanes: Vec<Vec<Box<Lane>>>,
    plan: Plan,
}

impl Pass {
    fn run(self, machine: &Machine) -> Result<Done, BenchError> {
        let Pass { shared, lanes, plan } = self;
        let cpus: Vec<CpuId> = machine.online().iter().collect();
        let there = &Countdown::new(lanes.len());
        let began = thread::scope(|scope| {
            let start = |(job, lanes): (usize, Vec<Box<Lane>>)| {
                let cpu = CpuSet::from_iter([cpus[job % cpus.len()]]);
                let body = move || {
                    // If the thread can't be pinned, the job begins anywhere.
                    let _ = machine.pin_current_thread(&cpu);
                    let began = time::now();
                    there.done();
                    lanes.into_iter().for_each(Lane::begin);
                    began
                };
                Builder::new().name(format!("job{job}")).spawn_scoped(scope, body)
            };
            let jobs: Vec<_> = lanes.into_iter().enumerate().map(start).collect();
            let all = jobs.iter().all(Result::is_ok);
            if all {
                there.wait();
            }
            if all && plan.requests == u64::MAX {
                Parker::new().park_timeout(plan.length);
            }
            if !all || plan.requests == u64::MAX {
                shared.over.store(true, Ordering::Relaxed);
            }
            let mut first = time::now();
            for job in jobs {
                let job = job.map_err(BenchError::Thread)?;
                first = first.min(job.join().map_err(|_| BenchError::Panicked)?);
            }
            Ok::<_, BenchError>(first)
        })?;
        shared.ended.wait();
        let mut done = std::mem::take(&mut *shared.done.lock());
        done.took = time::now() - began;
        match shared.failed.load(Ordering::Relaxed) {
            true => Err(BenchError::WrongAnswer),
            false => Ok(done),
        }
    }
}

/// The parameters of one pass.
#[derive(Debug, Clone, Copy)]
struct Plan {
    load: Load,
    bytes: u32,
    /// Largest number of requests of each lane.
    requests: u64,
    /// Length of the pass, if there is no such limit.
    length: Duration,
    timed: bool,
}

impl Plan {
    fn new(job: &Job, load: Load) -> Plan {
        let items = job.items.div_ceil(load.in_flight() as usize) as u64;
        let requests = if job.count { items } else { u64::MAX };
        let length = Duration::from_millis(job.length_ms);
        Plan { load, bytes: job.bytes, requests, length, timed: false }
    }
}

/// Measured values of a pass.
#[derive(Default)]
struct Done {
    requests: u64,
    took: Duration,
    noted: Vec<u64>,
}

struct Shared {
    /// A: true once no more requests are begun; Relaxed, a hint.
    over: AtomicBool,
    /// A: true once a request has failed; Relaxed, ordered by `ended`.
    failed: AtomicBool,
    /// Lanes that haven't ended.
    ended: Countdown,
    /// L: is the lock; guards the values of the lanes that have ended.
    done: Mutex<Done>,
}

/// A lane's own handle of the queue. Cloning it writes no line that all lanes write.
struct Target(Arc<Queue>);

/// One of the requests in flight.
struct Lane {
    target: Arc<Target>,
    shared: Arc<Shared>,
    plan: Plan,
    blocks: usize,
    rng: Rng,
    requests: u64,
    began: Stamp,
    noted: Vec<u32>,
    /// The buffer before the first request.
    buffer: Option<AlignedBuf>,
}

impl Lane {
    fn begin(mut self: Box<Lane>) {
        if let Some(buffer) = self.buffer.take() {
            self.next(buffer);
        }
    }

    /// Makes the next request, or ends the lane.
    fn next(mut self: Box<Lane>, mut buffer: AlignedBuf) {
        if self.requests == self.plan.requests || self.shared.over.load(Ordering::Relaxed) {
            // The buffer goes back to the pool before the pass's end is announced.
            drop(buffer);
            return self.end();
        }
        self.requests += 1;
        let bytes = self.plan.bytes as usize;
        let offset = (self.rng.usize(..self.blocks) * bytes) as u64;
        if self.plan.timed {
            self.began = Stamp::precise();
        }
        let rq = match self.plan.load.writes {
            true => Request::write(offset, buffer),
            false => {
                buffer.clear();
                Request::read_into(offset, bytes, buffer)
            }
        };
        let target = Arc::clone(&self.target);
        target.0.submit(rq.on_complete(move |done| self.completed(done)));
    }

    fn completed(mut self: Box<Lane>, done: Completed) {
        if self.plan.timed && self.noted.len() < self.noted.capacity() {
            let took = Stamp::precise().since(self.began).as_nanos();
            self.noted.push(u32::try_from(took).unwrap_or(u32::MAX));
        }
        match (done.result, done.payload) {
            (Ok(()), Payload::One(Buffer::Aligned(buffer))) => self.next(buffer),
            _ => {
                self.shared.failed.store(true, Ordering::Relaxed);
                self.end();
            }
        }
    }

    fn end(self) {
        let mut done = self.shared.done.lock();
        done.requests += self.requests;
        done.noted.extend(self.noted.iter().map(|&ns| u64::from(ns)));
        drop(done);
        self.shared.ended.done();
    }
}
