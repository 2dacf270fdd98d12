//! What a value costs that is read all the time and replaced now and then: who reads, while another CPU
//! replaces it.

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

/// On Corewise's cell, the one of the arc-swap crate, a lock.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("reads"),
    quick: |_, _| true,
    numbers: |job, _, on| {
        base(job, on);
        (job.items, job.gap_us) = (on.pick(20_000_000, 4_000_000), 1_000);
    },
    variants: |_, _| variants(&["corewise", "arc_swap", "rwlock"], false),
    run: |job, _| match job.runtime.as_str() {
        "arc_swap" | "rwlock" if !sys::KERNEL_THREADS => Ok(Some(job.cannot(NOT_SIMULATED))),
        _ => run(job, &Machine::live()?),
    },
};

/// Reads between two looks at the clock.
const BATCH: usize = 1_000;

/// What is read: as large as a small table of routes.
type Value = [u64; 16];

/// A cell that is read by some and replaced by others.
trait Shared: Sync {
    /// Reads it, and gives the sum of its first and last number.
    fn read(&self) -> u64;
    /// Replaces it; the old one is dropped before it returns, or later.
    fn replace(&self, value: Value);
}

impl Shared for ReadMostly<Value> {
    fn read(&self) -> u64 {
        sum(&ReadMostly::read(self))
    }
    fn replace(&self, value: Value) {
        ReadMostly::replace(self, value);
    }
}

impl Shared for ArcSwap<Value> {
    fn read(&self) -> u64 {
        sum(&self.load())
    }
    fn replace(&self, value: Value) {
        self.store(value.into());
    }
}

impl Shared for RwLock<Value> {
    fn read(&self) -> u64 {
        self.read().map_or(0, |value| sum(&value))
    }
    fn replace(&self, value: Value) {
        if let Ok(mut old) = self.write() {
            *old = value;
        }
    }
}

/// The sum of two of the numbers. It is even where they are of one value: each value has numbers that are one more than the
/// last one's.
fn sum(value: &Value) -> u64 {
    value[0] + value[15]
}

/// A reader that is pinned to `client_cpu` reads `items` times, rounded up to
/// batches of 1000, while a writer that is pinned to `server_cpu` replaces the value every `gap_us`
/// (0: back to back). `read_*`: of the batches, divided by 1000. `replace_p50`: of the writer's calls.
fn run(job: &Job, machine: &Machine) -> Result<Option<Line>, BenchError> {
    let first = [1; 16];
    let shared: Box<dyn Measured> = match job.runtime.as_str() {
        "corewise" => {
            // Once in a process, and no part of what is measured.
            fence::prepare();
            Box::new(ReadMostly::new(first))
        }
        "arc_swap" => Box::new(ArcSwap::from_pointee(first)),
        "rwlock" => Box::new(RwLock::new(first)),
        _ => return Ok(None),
    };
    let over = AtomicBool::new(false);
    let (reads, replaces) = thread::scope(|scope| {
        let writer = thread::Builder::new().name("writer".to_owned());
        let writer = writer.spawn_scoped(scope, || write(&*shared, job, machine, &over));
        let reads = read(&*shared, job, machine);
        over.store(true, Ordering::Relaxed);
        let writer = writer.map_err(BenchError::Thread)?;
        let replaces = writer.join().unwrap_or(Err(BenchError::Panicked))?;
        Ok::<_, BenchError>((reads?, replaces))
    })?;
    let mut line = job.line();
    let (mut reads, mut replaces) = (reads, replaces);
    percentiles(&mut line, "read", &mut reads, &[50.0, 99.0]);
    for metric in ["read_p50", "read_p99"] {
        if let Some(batch) = line.metrics.get_mut(metric) {
            *batch /= BATCH as f64;
        }
    }
    percentiles(&mut line, "replace", &mut replaces, &[50.0]);
    Ok(Some(line))
}

/// The loop of the reader, in which the cell's own reads are inlined.
trait Measured: Shared {
    /// A batch; false where a value wasn't whole.
    fn batch(&self) -> bool;
}

impl<S: Shared> Measured for S {
    fn batch(&self) -> bool {
        (0..BATCH).all(|_| black_box(self).read() % 2 == 0)
    }
}

fn read(shared: &dyn Measured, job: &Job, machine: &Machine) -> Result<Vec<u64>, BenchError> {
    alone("reader", || {
        machine.pin_current_thread(&CpuSet::from_iter([job.client()]))?;
        let batches = job.items.div_ceil(BATCH);
        let mut samples = Vec::with_capacity(batches);
        for number in 0..batches + batches.div_ceil(10) {
            let before = time::now();
            if !shared.batch() {
                return Err(BenchError::WrongAnswer);
            }
            // The first tenth warms up.
            if number >= batches.div_ceil(10) {
                samples.push(between(before, time::now()));
            }
        }
        Ok(samples)
    })
}

fn write(
    shared: &dyn Measured,
    job: &Job,
    machine: &Machine,
    over: &AtomicBool,
) -> Result<Vec<u64>, BenchError> {
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
        shared.replace([number; 16]);
        samples.push(between(before, time::now()));
    }
    Ok(samples)
}
