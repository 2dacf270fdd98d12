//! The published regression: the cost of runs of a hardware queue without pending requests.

use std::time::Duration;

use corewise_sync::{Mutex, sys, time};
use corewise_topology::Machine;

use crate::bench::{Cases, NOT_SIMULATED, Workload, count, variants};
use crate::blockmq::base;
use crate::blockmq::pi_mutex::PiMutex;
use crate::blockmq::recheck::{Fenced, Run, Spin, Unchecked, Under};
use crate::blockmq::setup::{Layer, Starter, Urgent};
use crate::blockmq::stream::{Plan, Stream};
use crate::calls::priority;
use crate::meter::{Meter, percentiles};
use crate::{BenchError, Job, Line};

/// Time for which the stream runs before anything is measured, long enough for a thread to be
/// interrupted while it has the lock. In a run without such an interrupt no convoy begins, and
/// `before` loses nothing.
const WARM: Duration = Duration::from_millis(200);
/// Largest number of timed runs of the hardware queue, four bytes each.
const SAMPLES: usize = 1 << 22;

/// Numbers of completion threads, the published machine's first.
const THREADS: [u32; 5] = [8, 1, 2, 4, 16];
/// Costs of completing a request, in nanoseconds of CPU time, the default first.
const COSTS: [u32; 4] = [1_000, 500, 2_000, 5_000];
/// Scheduling of the threads, in the order in which headlines prefer it. With `fifo` they have a
/// real-time priority (SCHED_FIFO), as interrupt threads have. Before the measurement, a task of a
/// higher priority runs on each CPU for 20 of each 200 µs, and interrupts them. With `ordinary`
/// they have no such priority, for comparison and for systems that refuse it. `alone` is `fifo`
/// without that task.
pub(super) const CLASSES: [&str; 3] = ["fifo", "ordinary", "alone"];

/// Returns the published case, as far as it is known: eight threads.
pub(super) fn published(class: &str) -> String {
    format!("seqread/{}/{}/{class}", THREADS[0], COSTS[0])
}

/// The published regression.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::Fit(
        |parts| match parts {
            ["seqread", threads, cost, class] => {
                count(threads) && cost.parse::<u32>().is_ok() && CLASSES.contains(class)
            }
            _ => false,
        },
        |on| {
            let best = CLASSES[usize::from(!on.urgent)];
            let mut all = vec![published(best)];
            all.extend(THREADS[1..].iter().map(|n| format!("seqread/{n}/{}/{best}", COSTS[0])));
            all.extend(
                COSTS[1..].iter().map(|cost| format!("seqread/{}/{cost}/{best}", THREADS[0])),
            );
            all.extend(CLASSES[1..].iter().filter(|_| on.urgent).map(|class| published(class)));
            all
        },
    ),
    quick: |parts, on| parts.join("/") == published(CLASSES[usize::from(!on.urgent)]),
    numbers: |job, _, on| {
        base(job, on);
        // Only runs that count allocations have this limit. Others run for their length.
        (job.items, job.length_ms) = (20_000, on.pick(1_000, 200));
    },
    variants: |_, _| variants(&["corewise", "before", "mutex", "spin", "unchecked"], true),
    run: |job, meter| {
        let class = job.parts()[3];
        if class != "ordinary" && !priority::may_be_real_time() {
            return Ok(job.cannot("real-time priorities aren't permitted here"));
        }
        let measure = match job.runtime.as_str() {
            "corewise" => measure::<Fenced>,
            "before" if !sys::KERNEL_THREADS => return Ok(job.cannot(NOT_SIMULATED)),
            "before" => measure::<Under<PiMutex>>,
            "spin" => measure::<Under<Spin>>,
            "mutex" => measure::<Under<Mutex<()>>>,
            "unchecked" => measure::<Unchecked>,
            _ => return job.unknown(),
        };
        measure(job, class, meter)
    },
};

fn measure<R: Run + Default>(
    job: &Job,
    class: &str,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    let machine = Machine::live()?;
    let (threads, cost) = (job.part(1), Duration::from_nanos(job.part(2).into()));
    let layer = Layer::null(&machine, threads as usize, cost, class != "ordinary")?;
    let _starter = Starter::new(class != "ordinary");
    let in_flight = job.depth * threads;
    let plan = Plan { reads: u64::MAX / 4, bytes: job.bytes, in_flight, samples: 0 };
    let begin = |plan| Stream::begin(&layer.queue, R::default(), plan);
    if job.count {
        let pass = |reads: usize| {
            let began = time::now();
            begin(Plan { reads: reads as u64, ..plan }).wait()?;
            Ok(time::now() - began)
        };
        // One-time allocations happen here.
        pass(job.items)?;
        meter.pass(job.items, || pass(job.items))?;
        return Ok(meter.finish(job.line()));
    }
    let urgent = (class == "fifo").then(|| Urgent::new(&machine)).transpose()?;
    let stream = begin(Plan { samples: SAMPLES / in_flight as usize, ..plan });
    stream.watch(WARM);
    drop(urgent);
    let length = Duration::from_millis(job.length_ms);
    meter.pass_of(|| Ok(stream.watch(length)))?;
    stream.time();
    let (_, took) = stream.watch(length / 2);
    stream.end();
    let mut waits: Vec<u64> = stream.wait()?.into_iter().map(u64::from).collect();
    let inside: u64 = waits.iter().sum();
    let mut line = job.line();
    percentiles(&mut line, "wait", &mut waits, &[50.0, 99.0, 99.9, 100.0]);
    line.set("waiting", inside as f64 / 1e9 / took.as_secs_f64());
    line.set("threads", meter.new_threads() as f64);
    let mut line = meter.finish(line);
    if let Some(rate) = line.metrics.get("items_per_second").copied() {
        line.set("bytes_per_second", rate * f64::from(job.bytes));
    }
    Ok(line)
}
