//! Wake-ups of a called CPU while calls come faster than it runs them.

use std::sync::Arc;
use std::time::Duration;

use corewise_smp::Smp;
use corewise_sync::{Completion, hint, time};
use corewise_topology::{CpuSet, Machine};

use crate::bench::{Cases, Workload, variants};
use crate::calls::{base, targets};
use crate::meter::Meter;
use crate::start::together;
use crate::{BenchError, Job, Line};

/// Calls from one caller that doesn't wait, or from several at the same time, each of which waits.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("load/burst load/waiters"),
    quick: |_, _| true,
    numbers: |job, _, on| {
        base(job, on);
        job.items = on.pick(100_000, 20_000);
    },
    variants: |_, _| variants(&["corewise"], true),
    run: |job, meter| match job.runtime.as_str() {
        "corewise" => run(job, &Machine::live()?, meter),
        _ => job.unknown(),
    },
};

/// Number of calls of a burst.
const BURST: usize = 1_000;
/// Callers that wait, at the same time.
const WAITERS: usize = 8;
/// Time of a called function.
const WORK: Duration = Duration::from_micros(2);

fn run(job: &Job, machine: &Machine, meter: &mut Meter) -> Result<Line, BenchError> {
    let smp = targets(machine)?;
    let wakeups = || smp.cpu_stats(job.server_cpu).map_or(0, |stats| stats.wakeups);
    let pass = |items: usize| match job.case == "load/burst" {
        true => bursts(job, machine, &smp, items),
        false => waiters(job, machine, &smp, items),
    };
    pass(job.items.div_ceil(10))?;
    let before = wakeups();
    meter.pass(job.items, || pass(job.items))?;
    let woken = wakeups() - before;
    let mut line = meter.finish(job.line());
    if !job.count {
        line.set("wakeups_per_1000", woken as f64 * 1_000.0 / job.items as f64);
    }
    Ok(line)
}

/// Sends calls from one client in bursts, and waits for the last call of each burst.
fn bursts(job: &Job, machine: &Machine, smp: &Smp, items: usize) -> Result<Duration, BenchError> {
    clients(job, machine, 1, |_| {
        let mut left = items;
        while left > 0 {
            let count = left.min(BURST);
            let last = Arc::new(Completion::new());
            for _ in 1..count {
                smp.detached().call(job.server_cpu, work).map_err(|_| BenchError::WrongAnswer)?;
            }
            let told = Arc::clone(&last);
            let end = move || {
                work();
                told.complete();
            };
            smp.detached().call(job.server_cpu, end).map_err(|_| BenchError::WrongAnswer)?;
            last.wait();
            left -= count;
        }
        Ok(())
    })
}

/// Calls from several clients at the same time, each of which waits for its answer.
fn waiters(job: &Job, machine: &Machine, smp: &Smp, items: usize) -> Result<Duration, BenchError> {
    clients(job, machine, WAITERS, |number| {
        for _ in 0..items / WAITERS + usize::from(number < items % WAITERS) {
            let call = smp.call(job.server_cpu, work);
            call.ok().and_then(|call| call.wait().ok()).ok_or(BenchError::WrongAnswer)?;
        }
        Ok(())
    })
}

/// Runs the clients on the client's CPU, and returns the time until all are done.
fn clients(
    job: &Job,
    machine: &Machine,
    count: usize,
    client: impl Fn(usize) -> Result<(), BenchError> + Sync,
) -> Result<Duration, BenchError> {
    let names: Vec<String> = (0..count).map(|number| format!("client/{number}")).collect();
    let ready = |_| Ok(machine.pin_current_thread(&CpuSet::from_iter([job.client()]))?);
    let ran = together(&names, ready, |number, _| client(number))?;
    Ok(ran.ended - ran.began)
}

/// Spins for the time of a called function.
fn work() {
    let until = time::now() + WORK;
    while time::now() < until {
        hint::spin_loop();
    }
}
