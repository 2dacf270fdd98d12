//! The costs of a value that is read all the time and sometimes replaced, for a reader and for the
//! CPU that replaces it.

use std::hint::black_box;
use std::sync::RwLock;

use arc_swap::ArcSwap;
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::epoch::ReadMostly;
use corewise_sync::{fence, sys, thread, time};
use corewise_topology::{CpuSet, Machine};

use crate::bench::{Cases, NOT_SIMULATED, Workload, variants};
use crate::calls::base;
use crate::meter::{between, percentiles, sleep_exactly};
use crate::start::alone;
use crate::{BenchError, Job, Line};

/// Reads of Corewise's cell, the cell of the arc-swap crate, and a value in a lock.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("reads"),
    quick: |_, _| true,
    numbers: |job, _, on| {
        base(job, on);
        (job.items, job.gap_us) = (on.pick(20_000_000, 4_000_000), 1_000);
    },
    variants: |_, _| variants(&["corewise", "arc_swap", "rwlock"], false),
    run: |job, _| match job.runtime.as_str() {
        "arc_swap" | "rwlock" if !sys::KERNEL_THREADS => Ok(job.cannot(NOT_SIMULATED)),
        _ => run(job, &Machine::live()?),
    },
};

/// Reads between two reads of the clock.
const BATCH: usize = 1_000;

/// The value, as large as a small table of routes.
type Value = [u64; 16];

/// Returns the sum of two of the numbers. It is even if they are of one value: the numbers of each
/// value are one more than the last one's.
fn sum(value: &Value) -> u64 {
    value[0] + value[15]
}

/// Runs a reader and a writer. The reader, pinned to `client_cpu`, reads `items` times, rounded up
/// to batches of 1000. The writer, pinned to `server_cpu`, replaces the value every `gap_us` (0:
/// back to back). `read_*` are percentiles of the batches, divided by 1000. `replace_p50` is the
/// median of the writer's calls. The old value is dropped before such a call returns, or later.
fn run(job: &Job, machine: &Machine) -> Result<Line, BenchError> {
    let first = [1; 16];
    match job.runtime.as_str() {
        "corewise" => {
            // This happens once in a process, and isn't measured.
            fence::prepare();
            let cell = ReadMostly::new(first);
            measure(job, machine, || sum(&cell.read()), |value| cell.replace(value))
        }
        "arc_swap" => {
            let cell = ArcSwap::from_pointee(first);
            measure(job, machine, || sum(&cell.load()), |value| cell.store(value.into()))
        }
        "rwlock" => {
            let cell = RwLock::new(first);
            let read = || cell.read().map_or(1, |value| sum(&value));
            measure(job, machine, read, |value| *cell.write().expect("no reader panics") = value)
        }
        _ => job.unknown(),
    }
}

fn measure(
    job: &Job,
    machine: &Machine,
    read: impl Fn() -> u64 + Sync,
    replace: impl Fn(Value) + Sync,
) -> Result<Line, BenchError> {
    let over = AtomicBool::new(false);
    let write = || {
        machine.pin_current_thread(&CpuSet::from_iter([job.server_cpu]))?;
        sleep_exactly();
        let gap = job.gap();
        let mut samples = Vec::new();
        for number in 2.. {
            if over.load(Ordering::Relaxed) && !samples.is_empty() {
                break;
            }
            if !gap.is_zero() {
                thread::sleep(gap);
            }
            let before = time::now();
            replace([number; 16]);
            samples.push(between(before, time::now()));
        }
        Ok(samples)
    };
    let batches = || {
        machine.pin_current_thread(&CpuSet::from_iter([job.client()]))?;
        let batches = job.items.div_ceil(BATCH);
        let mut samples = Vec::with_capacity(batches);
        for number in 0..batches + batches.div_ceil(10) {
            let before = time::now();
            // Each sum is even if the value was whole.
            if !(0..BATCH).all(|_| black_box(&read)() % 2 == 0) {
                return Err(BenchError::WrongAnswer);
            }
            // The first tenth warms up.
            if number >= batches.div_ceil(10) {
                samples.push(between(before, time::now()));
            }
        }
        Ok(samples)
    };
    let (mut reads, mut replaces) = thread::scope(|scope| {
        let writer = thread::Builder::new().name("writer".to_owned()).spawn_scoped(scope, write);
        let reads = alone("reader", batches);
        over.store(true, Ordering::Relaxed);
        let writer = writer.map_err(BenchError::Thread)?;
        let replaces = writer.join().unwrap_or(Err(BenchError::Panicked))?;
        Ok::<_, BenchError>((reads?, replaces))
    })?;
    let mut line = job.line();
    percentiles(&mut line, "read", &mut reads, &[50.0, 99.0]);
    for metric in ["read_p50", "read_p99"] {
        if let Some(batch) = line.metrics.get_mut(metric) {
            *batch /= BATCH as f64;
        }
    }
    percentiles(&mut line, "replace", &mut replaces, &[50.0]);
    Ok(line)
}
