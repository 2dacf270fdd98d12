//! The kernel's workqueue test (`lib/test_workqueue.c`, Linux 7.1), in user space.
//!
//! Each online CPU has one thread, pinned there. Each thread has one item in flight: it times the
//! *queueing call* alone, waits until the item has run, and does so again. So `call_*` are
//! percentiles of the call (in the old design, of the wait for the pool's lock), and `latency_*`
//! those of the round trip. The rate is the number of all items over the whole time. That runs from
//! the start of the first thread to the end of a flush after the threads have stopped.
//!
//! Each runtime gets the same threads and the same waiter: a futex-based parker without spinning.
//! If the runtime has reusable items, the item is made once. So nothing but the queue differs.

use corewise_sync::{Parker, Unparker, time};
use corewise_topology::{CpuId, CpuSet, Machine};

use crate::bench::{Cases, Workload};
use crate::meter::{Meter, between, percentiles};
use crate::start::together;
use crate::workqueue::{base, own, with_before};
use crate::{BenchError, Job, Line};

/// The kernel's test.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("kernel_test"),
    quick: |_, _| true,
    numbers: |job, _, on| {
        base(job, on);
        (job.producers, job.items, job.passes) = (job.workers, on.pick(50_000, 10_000), 1);
    },
    variants: |_, on| with_before(on, true, true),
    run: own,
};

/// Runs the workload on the first `producers` online CPUs of the machine. Threads of a synthetic
/// machine aren't pinned. `signal` makes the function that queues a thread's item, which unparks
/// the thread. Blocks.
///
/// # Errors
/// A thread couldn't be started or pinned, or one panicked.
pub(super) fn run<Q: Fn()>(
    job: &Job,
    machine: &Machine,
    meter: &mut Meter,
    signal: impl Fn(Unparker) -> Q + Sync,
    flush: impl Fn(),
) -> Result<Line, BenchError> {
    let cpus: Vec<CpuId> = machine.online().iter().take(job.producers).collect();
    if cpus.is_empty() {
        return Err(BenchError::Nothing { what: "online CPUs" });
    }
    let names: Vec<String> = cpus.iter().map(|cpu| format!("bench/{cpu}")).collect();
    let ready = |number: usize| {
        machine.pin_current_thread(&CpuSet::from_iter([cpus[number]]))?;
        let parker = Parker::new();
        Ok((signal(parker.unparker()), parker))
    };
    let (mut calls, mut latencies) = (Vec::new(), Vec::new());
    let mut pass = |each: usize| {
        let submit = |_, (queue, parker): (Q, Parker)| {
            let mut samples = Vec::with_capacity(each);
            let mut before = time::now();
            for _ in 0..each {
                queue();
                let queued = time::now();
                parker.park();
                let ran = time::now();
                samples.push((between(before, queued), between(before, ran)));
                before = ran;
            }
            Ok(samples)
        };
        let ran = together(&names, ready, submit)?;
        flush();
        let took = time::now() - ran.began;
        (calls, latencies) = ran.given.into_iter().flatten().unzip();
        Ok(took)
    };
    pass(job.items.div_ceil(10))?;
    for _ in 0..job.passes {
        meter.pass(job.items * cpus.len(), || pass(job.items))?;
    }
    let mut line = job.line();
    percentiles(&mut line, "call", &mut calls, &[50.0, 90.0, 95.0, 99.0]);
    percentiles(&mut line, "latency", &mut latencies, &[50.0, 90.0, 99.0, 99.9]);
    Ok(meter.finish(line))
}
