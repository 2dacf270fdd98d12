//! How long it takes to hold a queue, and until it goes on.

use std::time::{Duration, Instant};

use corewise_sync::{Parker, thread};
use corewise_topology::Machine;

use crate::blockmq::case::{Class, Hold};
use crate::blockmq::job::Job;
use crate::blockmq::recheck::Fenced;
use crate::blockmq::setup::Setup;
use crate::blockmq::stream::{Plan, Stream};
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{between, percentiles, sleep_exactly};
use crate::process::Job as _;

/// Completion threads of the device, and what a request costs them.
const DEVICE: (u16, Duration) = (2, Duration::from_micros(1));

/// Holds a queue so many times, while requests come and go or not.
///
/// # Errors
/// The workload couldn't be run, or a read failed.
pub fn run(job: &Job, hold: Hold, load: bool) -> Result<Line, BenchError> {
    let machine = Machine::live()?;
    sleep_exactly();
    let (threads, cost) = DEVICE;
    let setup = Setup::new(&machine, threads, cost, Class::Ordinary)?;
    let queue = setup.queue();
    let in_flight = job.depth * u32::from(threads);
    let plan = Plan { reads: u64::MAX / 4, bytes: job.bytes, in_flight, timed: false };
    let stream = load.then(|| Stream::begin(queue, Fenced, plan));
    let gap = || Parker::new().park_timeout(Duration::from_micros(job.gap_us.into()));
    let (mut held, mut resumed) = (Vec::new(), Vec::new());
    for _ in 0..job.items {
        gap();
        let began = Instant::now();
        match hold {
            Hold::Quiesce => queue.quiesce(),
            Hold::Freeze => queue.freeze(),
        }
        held.push(between(began, Instant::now()));
        // What the driver had is finished meanwhile.
        gap();
        let before = stream.as_ref().map(|stream| stream.begun());
        let began = Instant::now();
        match hold {
            Hold::Quiesce => queue.unquiesce(),
            Hold::Freeze => queue.unfreeze(),
        };
        if let (Some(stream), Some(before)) = (&stream, before) {
            // A read that is begun comes behind one that was finished.
            while stream.begun() == before {
                thread::yield_now();
            }
            resumed.push(between(began, Instant::now()));
        }
    }
    if let Some(stream) = stream {
        stream.end();
        stream.wait()?;
    }
    let mut line = job.line();
    percentiles(&mut line, "latency", &mut held, &[50.0, 99.0, 99.9]);
    line.set("latency_max", held.last().copied().unwrap_or(0) as f64);
    if load {
        percentiles(&mut line, "resume", &mut resumed, &[50.0, 99.0]);
    }
    Ok(line)
}
