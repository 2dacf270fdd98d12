//! The published regression: what runs of a hardware queue cost where nothing is pending.

use std::time::Duration;

use corewise_sync::{Mutex, SpinLock, time};
use corewise_topology::Machine;

use crate::blockmq::case::Class;
use crate::blockmq::job::Job;
use crate::blockmq::pi_mutex::PiMutex;
use crate::blockmq::recheck::{Fenced, Run, Unchecked, Under};
use crate::blockmq::setup::{Setup, Starter, Urgent};
use crate::blockmq::stream::{Plan, Stream};
use crate::calls::priority;
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Allocations, Meter, percentiles};
use crate::process::Job as _;

/// How long the stream runs before anything is measured: long enough for a thread to be interrupted while it has the
/// lock. In a run in which that happens to nobody no convoy begins, and `before` loses nothing.
const WARM: Duration = Duration::from_millis(200);
/// How many runs of the hardware queue are noted at most, each four bytes.
const SAMPLES: usize = 1 << 22;

/// What is varied.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// Completion threads.
    pub threads: u16,
    /// What completing a request costs.
    pub cost: Duration,
    /// How they are scheduled.
    pub class: Class,
}

/// Runs a job on one of the variants; `None` where there is none of that name.
///
/// # Errors
/// The workload couldn't be run, or a read failed.
pub fn run(
    job: &Job,
    threads: Threads,
    allocations: Option<Allocations>,
) -> Result<Option<Line>, BenchError> {
    if threads.class.is_real_time() && !priority::may_be_real_time() {
        return Ok(Some(job.cannot("real-time priorities aren't permitted here")));
    }
    Ok(Some(match job.runtime.as_str() {
        "corewise" => measure::<Fenced>(job, threads, allocations)?,
        "before" => measure::<Under<PiMutex>>(job, threads, allocations)?,
        "spin" => measure::<Under<SpinLock<()>>>(job, threads, allocations)?,
        "mutex" => measure::<Under<Mutex<()>>>(job, threads, allocations)?,
        "unchecked" => measure::<Unchecked>(job, threads, allocations)?,
        _ => return Ok(None),
    }))
}

fn measure<R: Run + Default>(
    job: &Job,
    threads: Threads,
    allocations: Option<Allocations>,
) -> Result<Line, BenchError> {
    let machine = Machine::live()?;
    let mut meter = Meter::new(job.count, allocations);
    let setup = Setup::new(&machine, threads.threads, threads.cost, threads.class)?;
    let _starter = Starter::new(threads.class);
    let in_flight = job.depth * u32::from(threads.threads);
    let plan = Plan { reads: u64::MAX / 4, bytes: job.bytes, in_flight, samples: 0 };
    let begin = |plan| Stream::begin(setup.queue(), R::default(), plan);
    if job.count {
        let pass = |reads: usize| {
            let began = time::now();
            begin(Plan { reads: reads as u64, ..plan }).wait()?;
            Ok(time::now() - began)
        };
        // Memory that is allocated once is allocated here.
        pass(job.items)?;
        meter.pass(job.items, || pass(job.items))?;
        let mut line = job.line();
        meter.finish(&mut line);
        return Ok(line);
    }
    let urgent = (threads.class == Class::Fifo).then(|| Urgent::new(&machine)).transpose()?;
    let stream = begin(Plan { samples: SAMPLES / in_flight as usize, ..plan });
    stream.watch(WARM);
    drop(urgent);
    let length = Duration::from_millis(job.length_ms.into());
    meter.pass_of(|| Ok(stream.watch(length)))?;
    stream.time();
    let (_, took) = stream.watch(length / 2);
    stream.end();
    let mut waits: Vec<u64> = stream.wait()?.into_iter().map(u64::from).collect();
    let inside: u64 = waits.iter().sum();
    let mut line = job.line();
    percentiles(&mut line, "wait", &mut waits, &[50.0, 99.0, 99.9]);
    line.set("wait_max", waits.last().copied().unwrap_or(0) as f64);
    line.set("waiting", inside as f64 / 1e9 / took.as_secs_f64());
    line.set("threads", meter.new_threads() as f64);
    meter.finish(&mut line);
    if let Some(rate) = line.metrics.get("items_per_second").copied() {
        line.set("bytes_per_second", rate * f64::from(job.bytes));
    }
    Ok(line)
}
