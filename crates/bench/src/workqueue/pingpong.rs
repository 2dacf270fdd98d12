//! One item in flight, from outside: how long until it has run and its client goes on.

use corewise_sync::{thread, time};
use std::time::Duration;

use corewise_sync::Parker;
use corewise_topology::{CpuSet, Machine};

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Meter, between, percentiles, sleep_exactly};
use crate::process::Job as _;
use crate::workqueue::job::Job;
use crate::workqueue::runtime::Signal;

/// Runs the workload; the runtime has pinned its worker where the job says so.
///
/// # Errors
/// The client couldn't be started or pinned, or panicked.
pub fn run<R: Signal>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    let mut line = job.line();
    // The client has a thread of its own, so that the pinning ends with it.
    let mut samples = thread::scope(|scope| {
        let client = thread::Builder::new().name("client".to_owned());
        let client = client.spawn_scoped(scope, || client_thread(job, machine, runtime, meter));
        client.map_err(BenchError::Thread)?.join().unwrap_or(Err(BenchError::Panicked))
    })?;
    percentiles(&mut line, "latency", &mut samples, &[50.0, 90.0, 99.0, 99.9]);
    if let Some(&max) = samples.last() {
        line.set("latency_max", max as f64);
    }
    meter.finish(&mut line);
    Ok(line)
}

fn client_thread<R: Signal>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Vec<u64>, BenchError> {
    if let Some(cpu) = job.client_cpu {
        machine.pin_current_thread(&CpuSet::from_iter([cpu]))?;
    }
    sleep_exactly();
    let parker = Parker::new();
    let item = runtime.item(parker.unparker());
    let gap = Duration::from_micros(job.gap_us.into());
    let mut samples = Vec::with_capacity(job.items * job.passes);
    let mut pings = |count: usize| {
        let began = time::now();
        for _ in 0..count {
            if !gap.is_zero() {
                thread::sleep(gap);
            }
            let before = time::now();
            runtime.queue(&item);
            parker.park();
            samples.push(between(before, time::now()));
        }
        Ok(time::now() - began)
    };
    pings(job.items.div_ceil(10))?;
    for _ in 0..job.passes {
        meter.pass(job.items, || pings(job.items))?;
    }
    runtime.flush();
    samples.drain(..job.items.div_ceil(10));
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Effort;
    use crate::workqueue::inline::Inline;

    #[test]
    fn the_warm_up_is_not_among_the_samples() {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        let case = "pingpong/cross/100us".parse().unwrap();
        let job = Job::new(case, "x", &machine.online(), Effort::Quick);
        let job = Job { items: 10, ..job };
        let (runtime, mut meter) = (Inline::default(), Meter::new(job.count, None));
        let samples = client_thread(&job, &machine, &runtime, &mut meter).unwrap();
        assert_eq!((samples.len(), runtime.queued()), (10, 11));
        let line = run(&job, &machine, &runtime, &mut meter).unwrap();
        assert!(line.metrics["latency_p50"] <= line.metrics["latency_max"]);
        assert!(!line.metrics.contains_key("latency_p999"), "of ten pings");
    }
}
