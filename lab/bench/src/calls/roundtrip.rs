//! Calls to one CPU or to many and their answers, from a client that does nothing else meanwhile.

use std::pin::Pin;
use std::task::{Context, Poll};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Parker, hint, sys, thread, time};
use corewise_topology::{CpuId, CpuSet, Machine};

use crate::bench::{Cases, NOT_SIMULATED, Workload, count, variants};
use crate::calls::eventfd::eventfd;
use crate::calls::{base, targets};
use crate::meter::{Meter, between, percentiles, sleep_exactly};
use crate::start::alone;
use crate::{BenchError, Job, Line};

/// Calls back to back, after a pause in which all threads go to sleep, and after such a pause while
/// the called CPU has ordinary work.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("roundtrip/hot roundtrip/cold roundtrip/busy"),
    quick: |_, _| true,
    numbers: |job, parts, on| {
        base(job, on);
        (job.items, job.gap_us) = match parts[1] {
            "hot" => (on.pick(40_000, 8_000), 0),
            _ => (on.pick(2_000, 300), 1_000),
        };
    },
    variants: |_, _| variants(&["corewise", "corewise-future", "eventfd"], true),
    run: |job, meter| {
        let machine = &Machine::live()?;
        match job.runtime.as_str() {
            "corewise" => run(job, machine, meter, || one(machine, job.server_cpu)),
            "corewise-future" => run(job, machine, meter, || awaited(machine, job.server_cpu)),
            "eventfd" if !sys::KERNEL_THREADS => Ok(job.cannot(NOT_SIMULATED)),
            "eventfd" => run(job, machine, meter, || eventfd(machine, job.server_cpu)),
            _ => job.unknown(),
        }
    },
};

/// Calls to several CPUs at once. On a synthetic machine they go to threads that aren't pinned, of
/// which there are more than CPUs.
pub(super) const BROADCAST: Workload = Workload {
    cases: Cases::Fit(
        |parts| match parts {
            ["broadcast", cpus] | ["broadcast", "synthetic", cpus] => count(cpus),
            _ => false,
        },
        |on| {
            let all = on.cpus.len();
            // The numbers are 1, 2, 4 and so on below all, and all.
            let sizes = (0..).map(|n| 1 << n).take_while(|n| *n < all).chain([all]);
            let synthetic = [2, 4, 8, 16, 32, 64].map(|cpus| format!("broadcast/synthetic/{cpus}"));
            sizes.map(|cpus| format!("broadcast/{cpus}")).chain(synthetic).collect()
        },
    ),
    quick: |parts, on| parts[1] == on.cpus.len().to_string(),
    numbers: |job, _, on| {
        base(job, on);
        (job.items, job.gap_us) = (on.pick(1_000, 150), 1_000);
    },
    variants: |parts, _| variants(&["corewise"], parts[1] != "synthetic"),
    run: |job, meter| {
        let machine = &match job.parts()[1] {
            "synthetic" => Machine::synthetic(&format!("core:{} pu:1", job.part(2)))?,
            _ => Machine::live()?,
        };
        if job.runtime != "corewise" {
            return job.unknown();
        }
        let cpus = called(job, machine)?;
        run(job, machine, meter, || many(machine, cpus))
    },
};

/// Runs a case on the function that `start` makes. The function makes each called CPU add one to
/// its argument, waits until all have, and returns the sum of their answers. The client's thread,
/// pinned to `job.client_cpu`, calls `start` and the function. A thread that they start must pin
/// itself, to `job.server_cpu` or, if several are called, to one of [`called`] each.
///
/// # Errors
/// The client couldn't be started or pinned, panicked, or got a wrong answer; or `start` failed.
pub fn run<C: FnMut(u64) -> u64>(
    job: &Job,
    machine: &Machine,
    meter: &mut Meter,
    start: impl FnOnce() -> Result<C, BenchError> + Send,
) -> Result<Line, BenchError> {
    let mut line = job.line();
    let over = AtomicBool::new(false);
    let mut samples = thread::scope(|scope| {
        if job.case == "roundtrip/busy" {
            let busy = thread::Builder::new().name("busy".to_owned());
            let busy = busy.spawn_scoped(scope, || burn(machine, job.server_cpu, &over));
            drop(busy.map_err(BenchError::Thread)?);
        }
        let samples = alone("client", || client_thread(job, machine, meter, start));
        over.store(true, Ordering::Relaxed);
        samples
    })?;
    percentiles(&mut line, "latency", &mut samples, &[50.0, 99.0, 99.9]);
    let mut line = meter.finish(line);
    if job.case == "roundtrip/busy" {
        // Nearly all CPU time is that of the thread that burns the CPU.
        line.metrics.remove("cpu_per_item");
        line.metrics.remove("cpu_seconds");
    }
    Ok(line)
}

/// Returns the CPUs that a job calls, in order.
///
/// # Errors
/// Fewer CPUs are online.
pub fn called(job: &Job, machine: &Machine) -> Result<CpuSet, BenchError> {
    let cpus: usize = match job.parts()[..] {
        ["broadcast", .., cpus] => cpus.parse().unwrap_or(0),
        _ => return Ok(CpuSet::from_iter([job.server_cpu])),
    };
    let called: CpuSet = machine.online().iter().take(cpus).collect();
    match called.len() == cpus {
        true => Ok(called),
        false => Err(BenchError::Nothing { what: "CPU for each that is to be called" }),
    }
}

fn client_thread<C: FnMut(u64) -> u64>(
    job: &Job,
    machine: &Machine,
    meter: &mut Meter,
    start: impl FnOnce() -> Result<C, BenchError>,
) -> Result<Vec<u64>, BenchError> {
    machine.pin_current_thread(&CpuSet::from_iter([job.client()]))?;
    sleep_exactly();
    let mut call = start()?;
    let answers = called(job, machine)?.len() as u64;
    let gap = job.gap();
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
            let answer = call(number);
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

/// Does ordinary work on a CPU, until `over` is true.
fn burn(machine: &Machine, cpu: CpuId, over: &AtomicBool) {
    // If this thread can't be pinned, neither can the called one, which reports the error.
    let _ = machine.pin_current_thread(&CpuSet::from_iter([cpu]));
    while !over.load(Ordering::Relaxed) {
        hint::spin_loop();
    }
}

/// Makes a function that calls one CPU and waits for the answer.
fn one(machine: &Machine, cpu: CpuId) -> Result<impl FnMut(u64) -> u64 + use<>, BenchError> {
    let smp = targets(machine)?;
    Ok(move |number| {
        let answer = smp.call(cpu, move || number + 1);
        answer.ok().and_then(|call| call.wait().ok()).unwrap_or(0)
    })
}

/// Makes a function that calls one CPU and awaits the answer as a future, parked meanwhile.
fn awaited(machine: &Machine, cpu: CpuId) -> Result<impl FnMut(u64) -> u64 + use<>, BenchError> {
    let (smp, parker) = (targets(machine)?, Parker::new());
    let waker = parker.waker();
    Ok(move |number| {
        let Ok(mut call) = smp.call(cpu, move || number + 1) else { return 0 };
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut call).poll(&mut context) {
                Poll::Ready(answer) => return answer.unwrap_or(0),
                Poll::Pending => parker.park(),
            }
        }
    })
}

/// Makes a function that calls several CPUs at once and waits for all answers.
fn many(machine: &Machine, cpus: CpuSet) -> Result<impl FnMut(u64) -> u64 + use<>, BenchError> {
    let smp = targets(machine)?;
    Ok(move |number| {
        let answers = smp.call_each(&cpus, move |_| number + 1).wait();
        answers.values.map(|(_, answer)| answer.unwrap_or(0)).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::tests::job;

    fn measure(case: &str, answers: u64, wrong_at: u64) -> Result<Line, BenchError> {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        let job = Job { items: 10, gap_us: 1, ..job(case, 2) };
        let here = move |number| answers * (number + 1 + u64::from(number == wrong_at));
        run(&job, &machine, &mut Meter::new(false, None), || Ok(here))
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
    fn calls_to_one_and_to_many_answer() {
        let machine = Machine::synthetic("core:3 pu:1").unwrap();
        assert_eq!(one(&machine, CpuId::new(2)).unwrap()(4), 5);
        assert_eq!(awaited(&machine, CpuId::new(1)).unwrap()(6), 7);
        assert_eq!(many(&machine, CpuSet::full(3)).unwrap()(4), 15);
    }

    #[test]
    fn a_wrong_answer_and_a_cpu_that_isnt_there_are_errors() {
        assert!(matches!(measure("roundtrip/hot", 1, 5), Err(BenchError::WrongAnswer)));
        assert!(matches!(measure("broadcast/3", 3, 1_000), Err(BenchError::Nothing { .. })));
    }
}
