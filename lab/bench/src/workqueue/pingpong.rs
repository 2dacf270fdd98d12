//! One item in flight, from outside: the time until it has run and its client goes on.

use corewise_sync::{Parker, Unparker, thread, time};
use corewise_topology::{AffinityScope, CpuSet, Machine};

use crate::bench::{Cases, Variant, Workload};
use crate::meter::{Meter, between, percentiles, sleep_exactly};
use crate::names::Place;
use crate::start::alone;
use crate::workqueue::{base, before, corewise, own, with_scopes};
use crate::{BenchError, Job, Line};

/// Pings with different CPUs of client and worker, and pauses before each ping.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These(
        "pingpong/free/hot pingpong/free/500us pingpong/same/hot pingpong/same/500us \
         pingpong/cross/hot pingpong/cross/500us",
    ),
    quick: |parts, _| parts[1..] == ["free", "hot"],
    numbers: |job, parts, on| {
        base(job, on);
        (job.producers, job.passes) = (1, 1);
        job.gap_us = parts[2].trim_end_matches("us").parse().unwrap_or(0);
        job.items = if job.gap_us == 0 { on.pick(20_000, 4_000) } else { on.pick(2_000, 400) };
        // Other work, such as interrupts, is most often on the first CPU.
        let (first, last) = (on.cpus.first(), on.cpus.last());
        match parts[1] {
            "same" => (job.workers, job.client_cpu, job.worker_cpu) = (1, last, last),
            "cross" => (job.workers, job.client_cpu, job.worker_cpu) = (1, last, first),
            _ => {}
        }
    },
    variants: |parts, on| {
        let floor = Variant::of("futex");
        if parts[1] == "free" {
            return [with_scopes(on, false, false), vec![before(false), floor]].concat();
        }
        // One CPU is one pod, whatever the scope.
        let cpu = Place::of(AffinityScope::Cpu);
        vec![corewise(cpu, false), Variant { place: Some(cpu), ..before(false) }, floor]
    },
    run: own,
};

/// Runs the workload. `signal` makes the function that queues an item, which leaves the token. The
/// runtime has pinned its worker, if the job says so.
///
/// # Errors
/// The client couldn't be started or pinned, or panicked.
pub(super) fn run<Q: Fn()>(
    job: &Job,
    machine: &Machine,
    meter: &mut Meter,
    signal: impl FnOnce(Unparker) -> Result<Q, BenchError> + Send,
) -> Result<Line, BenchError> {
    let mut samples = alone("client", || {
        if let Some(cpu) = job.client_cpu {
            machine.pin_current_thread(&CpuSet::from_iter([cpu]))?;
        }
        sleep_exactly();
        let parker = Parker::new();
        let queue = signal(parker.unparker())?;
        let gap = job.gap();
        let mut samples = Vec::with_capacity(job.items * job.passes);
        let pings = |count: usize| {
            let began = time::now();
            for _ in 0..count {
                if !gap.is_zero() {
                    thread::sleep(gap);
                }
                let before = time::now();
                queue();
                parker.park();
                samples.push(between(before, time::now()));
            }
            Ok(time::now() - began)
        };
        meter.passes(job, pings)?;
        samples.drain(..job.items.div_ceil(10));
        Ok(samples)
    })?;
    let mut line = job.line();
    percentiles(&mut line, "latency", &mut samples, &[50.0, 90.0, 99.0, 99.9, 100.0]);
    Ok(meter.finish(line))
}
