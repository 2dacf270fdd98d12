//! Times of holding a queue, or many, and of the first read afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_blockmq::{Queue, QuiesceGuard};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, Parker, time};
use corewise_topology::Machine;

use crate::bench::{Cases, Workload, count, variants};
use crate::blockmq::base;
use crate::blockmq::recheck::Run;
use crate::blockmq::setup::Layer;
use crate::blockmq::stream::{Plan, Stream};
use crate::meter::{between, percentiles, sleep_exactly};
use crate::{BenchError, Job, Line};

/// Holds of one queue, either without dispatch (quiesce) or without requests inside (freeze), with
/// a load or idle.
pub(super) const HOLD: Workload = Workload {
    cases: Cases::These("quiesce/idle quiesce/load freeze/idle freeze/load"),
    quick: |parts, _| parts[1] == "load",
    numbers: |job, _, on| {
        base(job, on);
        job.items = on.pick(1_000, 200);
    },
    variants: |_, _| variants(&["corewise"], false),
    run: |job, _| match job.runtime.as_str() {
        "corewise" => one(job),
        _ => job.unknown(),
    },
};

/// Holds of many queues, like the disks of one controller. One of them has requests meanwhile.
pub(super) const QUIESCE_ALL: Workload = Workload {
    cases: Cases::Fit(
        |parts| matches!(parts, ["quiesce_all", queues] if count(queues)),
        |_| [4, 16, 64].map(|queues| format!("quiesce_all/{queues}")).into(),
    ),
    quick: |parts, _| parts[1] == "16",
    numbers: HOLD.numbers,
    variants: |_, _| variants(&["corewise", "one_by_one"], false),
    run: |job, _| many(job),
};

/// Completion threads of the device, and their cost of a request.
const DEVICE: (usize, Duration) = (2, Duration::from_micros(1));

/// Holds a queue, `items` times, with reads meanwhile or without.
fn one(job: &Job) -> Result<Line, BenchError> {
    let layer = layer()?;
    let queue = &layer.queue;
    let freezes = job.case.starts_with("freeze");
    let under_load = job.case.ends_with("load");
    if freezes {
        return repeat(job, &layer, under_load, || queue.freeze());
    }
    repeat(job, &layer, under_load, || queue.quiesce())
}

/// Quiesces and resumes many queues, again and again, while reads come and go on the first of them.
/// One fence and one wait quiesce all of them, or each is quiesced in turn.
fn many(job: &Job) -> Result<Line, BenchError> {
    let quiesce: fn(&[Arc<Queue>]) -> Vec<QuiesceGuard> = match job.runtime.as_str() {
        "corewise" => Queue::quiesce_all,
        "one_by_one" => |queues| queues.iter().map(Queue::quiesce).collect(),
        _ => return job.unknown(),
    };
    let layer = layer()?;
    let others: Vec<Arc<Queue>> = (1..job.part(1)).map(|_| layer.idle_queue()).collect();
    let all: Vec<_> = std::iter::once(&layer.queue).chain(&others).cloned().collect();
    repeat(job, &layer, true, || quiesce(&all))
}

fn layer() -> Result<Layer, BenchError> {
    let (threads, cost) = DEVICE;
    sleep_exactly();
    Layer::null(&Machine::live()?, threads, cost, false)
}

/// Begins a hold and ends it, again and again. With a load, there are reads of the queue meanwhile.
fn repeat<Guard>(
    job: &Job,
    layer: &Layer,
    load: bool,
    begin: impl Fn() -> Guard,
) -> Result<Line, BenchError> {
    let in_flight = job.depth * DEVICE.0 as u32;
    let plan = Plan { reads: u64::MAX / 4, bytes: job.bytes, in_flight, samples: 0 };
    let first = Arc::new(First::default());
    let stream = load.then(|| Stream::begin(&layer.queue, Arc::clone(&first), plan));
    let gap = || Parker::new().park_timeout(job.gap());
    let (mut held, mut resumed) = (Vec::new(), Vec::new());
    for _ in 0..job.items {
        gap();
        let began = time::now();
        let guard = begin();
        held.push(between(began, time::now()));
        // Requests in the driver end meanwhile.
        gap();
        first.ask();
        let began = time::now();
        drop(guard);
        if load {
            resumed.push(between(began, first.wait(began)));
        }
    }
    if let Some(stream) = stream {
        stream.end();
        stream.wait()?;
    }
    let mut line = job.line();
    percentiles(&mut line, "latency", &mut held, &[50.0, 99.0, 99.9, 100.0]);
    percentiles(&mut line, "resume", &mut resumed, &[50.0, 99.0]);
    Ok(line)
}

/// The time of the first read that completes after the time was asked for.
#[derive(Debug, Default)]
struct First {
    /// A: true while the time is asked for and unset; Relaxed, since the read comes through the
    /// queue, which is resumed after the store.
    asked: AtomicBool,
    /// L: is the lock; guards the time.
    at: Mutex<Option<Instant>>,
    told: Parker,
}

impl First {
    fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Waits for the time and returns it. Reads that completed before `since` weren't held.
    fn wait(&self, since: Instant) -> Instant {
        loop {
            // The lock is released before the wait.
            let at = self.at.lock().take();
            match at {
                Some(at) if at >= since => return at,
                Some(_) => self.ask(),
                None => self.told.park(),
            }
        }
    }
}

impl Run for Arc<First> {
    #[inline]
    fn run(&self, queue: &Queue, hctx: usize) {
        queue.run(hctx);
        if self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::Relaxed) {
            *self.at.lock() = Some(time::now());
            self.told.unpark();
        }
    }
}
