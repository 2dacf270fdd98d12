//! One call and its answer, from a client that does nothing else meanwhile.

use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{hint, thread, time};
use corewise_topology::{CpuSet, Machine};

use crate::calls::case::{Case, Pace};
use crate::calls::job::Job;
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Meter, between, percentiles, sleep_exactly};
use crate::process::Job as _;

/// What can have something done on another CPU, or on several.
pub trait Caller {
    /// Has each called CPU add one to `number`, waits until all have, and returns the sum of their
    /// answers. Always called by one thread, the one that made this.
    fn call(&mut self, number: u64) -> u64;
}

/// Runs a case on a caller. `start` makes it, in the client's thread, which is pinned to
/// `job.client_cpu` by then: a thread that it makes must pin itself, to `job.server_cpu` or, where
/// several are called, to one of [`called`] each.
///
/// # Errors
/// The client couldn't be started or pinned, panicked, or got a wrong answer; or `start` failed.
pub fn run<C: Caller>(
    job: &Job,
    machine: &Machine,
    meter: &mut Meter,
    start: impl FnOnce() -> Result<C, BenchError> + Send,
) -> Result<Line, BenchError> {
    let mut line = job.line();
    let over = AtomicBool::new(false);
    let mut samples = thread::scope(|scope| {
        if job.case == Case::RoundTrip(Pace::Busy) {
            let busy = thread::Builder::new().name("busy".to_owned());
            let busy = busy.spawn_scoped(scope, || burn(machine, job.server_cpu, &over));
            drop(busy.map_err(BenchError::Thread)?);
        }
        // The client has a thread of its own, so that the pinning ends with it.
        let client = thread::Builder::new().name("client".to_owned());
        let client = client.spawn_scoped(scope, || client_thread(job, machine, meter, start));
        let samples = client
            .map_err(BenchError::Thread)
            .and_then(|client| client.join().unwrap_or(Err(BenchError::Panicked)));
        over.store(true, Ordering::Relaxed);
        samples
    })?;
    percentiles(&mut line, "latency", &mut samples, &[50.0, 99.0, 99.9]);
    meter.finish(&mut line);
    if job.case == Case::RoundTrip(Pace::Busy) {
        // Nearly all of it is the thread that burns the CPU.
        line.metrics.remove("cpu_per_item");
        line.metrics.remove("cpu_seconds");
    }
    Ok(line)
}

/// The CPUs that a job calls, in order.
///
/// # Errors
/// So many aren't online.
pub fn called(job: &Job, machine: &Machine) -> Result<CpuSet, BenchError> {
    let Case::Broadcast { cpus, .. } = job.case else {
        return Ok(CpuSet::from_iter([job.server_cpu]));
    };
    let called: CpuSet = machine.online().iter().take(cpus).collect();
    match called.len() == cpus {
        true => Ok(called),
        false => Err(BenchError::Nothing { what: "CPU for each that is to be called" }),
    }
}

fn client_thread<C: Caller>(
    job: &Job,
    machine: &Machine,
    meter: &mut Meter,
    start: impl FnOnce() -> Result<C, BenchError>,
) -> Result<Vec<u64>, BenchError> {
    machine.pin_current_thread(&CpuSet::from_iter([job.client_cpu]))?;
    sleep_exactly();
    let mut caller = start()?;
    let answers = called(job, machine)?.len() as u64;
    let gap = Duration::from_micros(job.gap_us.into());
    let mut samples = Vec::with_capacity(job.items);
    let mut number = 0;
    let mut calls = |samples: &mut Vec<u64>, count: usize| {
        let began = time::now();
        for _ in 0..count {
            if !gap.is_zero() {
                thread::sleep(gap);
            }
            number += 1;
            let before = time::now();
            let answer = caller.call(number);
            samples.push(between(before, time::now()));
            if answer != answers * (number + 1) {
                return Err(BenchError::WrongAnswer);
            }
        }
        Ok(time::now() - began)
    };
    calls(&mut samples, job.items.div_ceil(10))?;
    samples.clear();
    meter.pass(job.items, || calls(&mut samples, job.items))?;
    Ok(samples)
}

/// Ordinary work on a CPU, until it is over.
fn burn(machine: &Machine, cpu: u32, over: &AtomicBool) {
    // Where it can't be pinned, neither can the one that it would disturb, which says so.
    let _ = machine.pin_current_thread(&CpuSet::from_iter([cpu]));
    while !over.load(Ordering::Relaxed) {
        hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Effort;

    struct Here {
        answers: u64,
        wrong_at: u64,
    }

    impl Caller for Here {
        fn call(&mut self, number: u64) -> u64 {
            self.answers * (number + 1 + u64::from(number == self.wrong_at))
        }
    }

    fn measure(case: &str, answers: u64, wrong_at: u64) -> Result<Line, BenchError> {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        let job = Job::new(case.parse().unwrap(), "here", &machine.online(), Effort::Quick);
        let job = Job { items: 10, gap_us: job.gap_us.min(1), ..job };
        let mut meter = Meter::new(false, None);
        run(&job, &machine, &mut meter, || Ok(Here { answers, wrong_at }))
    }

    #[test]
    fn every_call_counts_but_the_warm_up() {
        for (case, answers) in [("roundtrip/hot", 1), ("roundtrip/busy", 1), ("broadcast/2", 2)] {
            let line = measure(case, answers, 1_000).unwrap();
            assert_eq!(line.case, case);
            assert!(line.metrics["latency_p50"] <= line.metrics["latency_p99"]);
            assert!(!line.metrics.contains_key("latency_p999"), "of ten calls");
            assert_eq!(line.metrics.contains_key("cpu_per_item"), case != "roundtrip/busy");
        }
    }

    #[test]
    fn a_wrong_answer_and_a_cpu_that_isnt_there_are_errors() {
        assert!(matches!(measure("roundtrip/hot", 1, 5), Err(BenchError::WrongAnswer)));
        assert!(matches!(measure("broadcast/3", 3, 1_000), Err(BenchError::Nothing { .. })));
    }
}
