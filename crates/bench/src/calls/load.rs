//! How often a called CPU is woken while calls come faster than it runs them.

use std::sync::Arc;
use std::time::Duration;

use corewise_smp::Smp;
use corewise_sync::{Completion, hint, time};
use corewise_topology::{CpuSet, Machine};

use crate::calls::case::Load;
use crate::calls::job::Job;
use crate::calls::variants::targets;
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::Meter;
use crate::process::Job as _;
use crate::start::together;

/// Calls of a burst.
pub const BURST: usize = 1_000;
/// Callers that wait, at the same time.
pub const WAITERS: usize = 8;
/// What a called function does.
const WORK: Duration = Duration::from_micros(2);

/// Runs the workload.
///
/// # Errors
/// A thread couldn't be started or pinned, or a call was refused.
pub fn run(
    job: &Job,
    machine: &Machine,
    load: Load,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    let smp = targets(machine)?;
    let wakeups = || smp.cpu_stats(job.server_cpu).map_or(0, |stats| stats.wakeups);
    let pass = |items: usize| match load {
        Load::Burst => bursts(job, machine, &smp, items),
        Load::Waiters => waiters(job, machine, &smp, items),
    };
    pass(job.items.div_ceil(10))?;
    let mut line = job.line();
    let before = wakeups();
    meter.pass(job.items, || pass(job.items))?;
    let woken = wakeups() - before;
    meter.finish(&mut line);
    if !job.count {
        line.set("wakeups_per_1000", woken as f64 * 1_000.0 / job.items as f64);
    }
    Ok(line)
}

/// One client sends so many calls for which nobody waits, in bursts, and waits for the last of each.
fn bursts(job: &Job, machine: &Machine, smp: &Smp, items: usize) -> Result<Duration, BenchError> {
    clients(job, machine, 1, |_| {
        let mut left = items;
        while left > 0 {
            let count = left.min(BURST);
            let last = Arc::new(Completion::new());
            for _ in 1..count {
                smp.call_nowait(job.server_cpu, work).map_err(|_| BenchError::WrongAnswer)?;
            }
            let told = Arc::clone(&last);
            let end = move || {
                work();
                told.complete();
            };
            smp.call_nowait(job.server_cpu, end).map_err(|_| BenchError::WrongAnswer)?;
            last.wait();
            left -= count;
        }
        Ok(())
    })
}

/// Several clients call at the same time, and each waits for its answer.
fn waiters(job: &Job, machine: &Machine, smp: &Smp, items: usize) -> Result<Duration, BenchError> {
    clients(job, machine, WAITERS, |number| {
        for _ in 0..items / WAITERS + usize::from(number < items % WAITERS) {
            let call = smp.call(job.server_cpu, work);
            call.ok().and_then(|call| call.wait().ok()).ok_or(BenchError::WrongAnswer)?;
        }
        Ok(())
    })
}

/// How long it takes them all, on the client's CPU.
fn clients(
    job: &Job,
    machine: &Machine,
    count: usize,
    client: impl Fn(usize) -> Result<(), BenchError> + Sync,
) -> Result<Duration, BenchError> {
    let names: Vec<String> = (0..count).map(|number| format!("client/{number}")).collect();
    let spans = together(&names, |number, start| {
        if let Err(error) = machine.pin_current_thread(&CpuSet::from_iter([job.client_cpu])) {
            start.abort();
            return Err(error.into());
        }
        if !start.wait() {
            return Ok(None);
        }
        let began = time::now();
        client(number)?;
        Ok(Some((began, time::now())))
    })?;
    let began = spans.iter().map(|(began, _)| *began).min();
    let ended = spans.iter().map(|(_, ended)| *ended).max();
    Ok(began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began))
}

/// The called function.
fn work() {
    let until = time::now() + WORK;
    while time::now() < until {
        hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::case::Case;
    use crate::words::Effort;

    #[test]
    fn all_calls_are_run_and_wake_ups_counted() {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        for load in Load::ALL {
            let case = Case::Load(load);
            let job = Job::new(case, "corewise", &machine.online(), Effort::Quick);
            let job = Job { items: 2_003, ..job };
            let line = run(&job, &machine, load, &mut Meter::new(false, None)).unwrap();
            let woken = line.metrics["wakeups_per_1000"];
            assert!((0.0..=1_000.0).contains(&woken), "{woken}");
            assert!(line.metrics["items_per_second"] > 0.0);
        }
    }
}
