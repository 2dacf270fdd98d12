//! The published regression: what runs of a hardware queue cost where nothing is pending.

use std::time::{Duration, Instant};

use corewise_sync::{Mutex, SpinLock};
use corewise_topology::Machine;

use crate::blockmq::case::Class;
use crate::blockmq::job::Job;
use crate::blockmq::pi_mutex::PiMutex;
use crate::blockmq::recheck::{Fenced, Run, Unchecked, Under};
use crate::blockmq::setup::{Setup, Starter};
use crate::blockmq::stream::{Plan, Stream};
use crate::calls::priority;
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Allocations, Meter, percentiles};
use crate::process::Job as _;

/// So many times fewer reads are there in passes that only warm up.
const WARM: u64 = 10;
/// So many times fewer reads are there in the pass in which the clock is read.
const TIMED: u64 = 2;

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
    let items = job.items as u64;
    let plan = Plan {
        reads: items,
        bytes: job.bytes,
        in_flight: job.depth * u32::from(threads.threads),
        timed: false,
    };
    let pass = |plan: Plan| {
        let began = Instant::now();
        let noted = Stream::begin(setup.queue(), R::default(), plan).wait()?;
        Ok::<_, BenchError>((began.elapsed(), noted))
    };
    pass(Plan { reads: (items / WARM).max(1), ..plan })?;
    meter.pass(job.items, || Ok(pass(plan)?.0))?;
    let mut line = job.line();
    if !job.count {
        // The clock costs as much as some of the variants: it has a pass of its own.
        let (took, noted) = pass(Plan { reads: (items / TIMED).max(1), timed: true, ..plan })?;
        let mut waits: Vec<u64> = noted.into_iter().map(u64::from).collect();
        let inside: u64 = waits.iter().sum();
        percentiles(&mut line, "wait", &mut waits, &[50.0, 99.0, 99.9]);
        line.set("wait_max", waits.last().copied().unwrap_or(0) as f64);
        line.set("waiting", inside as f64 / 1e9 / took.as_secs_f64());
        line.set("threads", meter.new_threads() as f64);
    }
    meter.finish(&mut line);
    if let Some(rate) = line.metrics.get("items_per_second").copied() {
        line.set("bytes_per_second", rate * f64::from(job.bytes));
    }
    Ok(line)
}
