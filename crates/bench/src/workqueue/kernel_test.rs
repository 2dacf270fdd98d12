//! The kernel's workqueue test (`lib/test_workqueue.c`, Linux 7.1), in user space.
//!
//! One thread per online CPU, pinned there. Each has one item in flight: it times the *queueing
//! call* alone, waits until the item has run, and does so again. So `call_*` are percentiles of the
//! call (in the old design, of the wait for the pool's lock), and `latency_*` those of the round
//! trip. The rate is all items by the time from the start of the first thread to the end of a flush
//! after they have stopped.
//!
//! Every runtime is given the same threads and the same waiter (a futex-based parker without
//! spinning), and an item that is made once where the runtime has such items, so nothing but the
//! queue differs.

use std::time::Instant;

use corewise_sync::time;

use corewise_sync::Parker;
use corewise_topology::{CpuId, CpuSet, Machine};

use crate::bench::{Cases, Workload};
use crate::meter::{Meter, between, percentiles};
use crate::start::together;
use crate::workqueue::runtime::{Signal, TakeBack};
use crate::workqueue::{base, own, with_before, with_scopes};
use crate::{BenchError, Job, Line};

/// The kernel's test; `inline`: waiters may run their item themselves.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("kernel_test kernel_test/inline"),
    quick: |parts, _| parts.len() == 1,
    numbers: |job, _, on| {
        base(job, on);
        (job.producers, job.items, job.passes) = (job.workers, on.pick(50_000, 10_000), 1);
    },
    variants: |parts, on| match parts {
        ["kernel_test"] => with_before(on, true, true),
        _ => with_scopes(on, false, false),
    },
    run: own,
};

/// Runs the workload once, on the first `producers` online CPUs of the machine. Threads of a
/// synthetic machine aren't pinned. Blocks.
///
/// # Errors
/// A thread couldn't be started or pinned, or one panicked.
pub(super) fn run<R: Signal>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    run_with(job, machine, runtime, meter, |_, _, parker| parker.park())
}

/// As [`run`], with clients that take their item back where no worker has begun it.
///
/// # Errors
/// As [`run`].
pub(super) fn run_inline<R: TakeBack>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    run_with(job, machine, runtime, meter, |runtime, item, _| runtime.wait(item))
}

fn run_with<R: Signal>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
    wait: impl Fn(&R, &R::Item, &Parker) + Sync,
) -> Result<Line, BenchError> {
    let cpus: Vec<CpuId> = machine.online().iter().take(job.producers).collect();
    if cpus.is_empty() {
        return Err(BenchError::Nothing { what: "online CPUs" });
    }
    let mut line = job.line();
    let names: Vec<String> = cpus.iter().map(|cpu| format!("bench/{cpu}")).collect();
    let items = job.items * cpus.len();
    let (mut calls, mut latencies) = (Vec::new(), Vec::new());
    for pass in 0..=job.passes {
        // The first one is over a tenth, and isn't measured.
        let each = if pass == 0 { job.items.div_ceil(10) } else { job.items };
        let mut runs = Vec::new();
        let mut one = || {
            runs = together(&names, |number, start| {
                let cpu = CpuSet::from_iter([cpus[number]]);
                machine.pin_current_thread(&cpu).inspect_err(|_| start.abort())?;
                Ok(start.wait().then(|| submit(runtime, each, &wait)))
            })?;
            runtime.flush();
            let end = time::now();
            let began = runs.iter().map(|run| run.began).min().unwrap_or(end);
            Ok(end - began)
        };
        if pass == 0 {
            one()?;
            continue;
        }
        meter.pass(items, one)?;
        for run in runs {
            calls.extend(run.calls);
            latencies.extend(run.latencies);
        }
    }
    percentiles(&mut line, "call", &mut calls, &[50.0, 90.0, 95.0, 99.0]);
    percentiles(&mut line, "latency", &mut latencies, &[50.0, 90.0, 99.0, 99.9]);
    meter.finish(&mut line);
    Ok(line)
}

/// What one thread measured.
struct ThreadRun {
    began: Instant,
    calls: Vec<u64>,
    latencies: Vec<u64>,
}

fn submit<R: Signal>(
    runtime: &R,
    items: usize,
    wait: &impl Fn(&R, &R::Item, &Parker),
) -> ThreadRun {
    let parker = Parker::new();
    let item = runtime.item(parker.unparker());
    let (mut calls, mut latencies) = (Vec::with_capacity(items), Vec::with_capacity(items));
    let began = time::now();
    let mut before = began;
    for _ in 0..items {
        runtime.queue(&item);
        let queued = time::now();
        wait(runtime, &item, &parker);
        let ran = time::now();
        calls.push(between(before, queued));
        latencies.push(between(before, ran));
        before = ran;
    }
    ThreadRun { began, calls, latencies }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workqueue::inline::Inline;
    use crate::workqueue::runtime::Runtime;
    use crate::workqueue::tests::job;
    use corewise_sync::Unparker;

    const FIFTY: &str = "kernel_test items=50";

    #[test]
    fn each_cpu_queues_its_items_and_the_end_is_flushed_once_a_pass() {
        let machine = Machine::synthetic("core:3 pu:1").unwrap();
        let runtime = Inline::default();
        let line = run(&job(FIFTY, 3), &machine, &runtime, &mut Meter::new(false, None)).unwrap();
        assert_eq!(runtime.queued(), 3 * (5 + 50), "a tenth of them before");
        assert_eq!(runtime.flushed(), 2);
        assert!(line.metrics["items_per_second"] > 0.0);
        let of = |metric: &str| line.metrics[metric];
        assert!(of("call_p50") <= of("call_p90") && of("call_p90") <= of("call_p95"));
        assert!(of("call_p50") <= of("latency_p50"));
    }

    #[test]
    fn a_panic_in_the_queue_is_an_error_and_nobody_hangs() {
        struct Broken;
        impl Runtime for Broken {}
        impl Signal for Broken {
            type Item = ();
            fn item(&self, _done: Unparker) {}
            fn queue(&self, (): &()) {
                panic!("on purpose");
            }
        }
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        let ran = run(&job(FIFTY, 2), &machine, &Broken, &mut Meter::new(false, None));
        assert!(matches!(ran, Err(BenchError::Panicked)));
    }
}
