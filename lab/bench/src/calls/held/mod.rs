//! How long an urgent task waits for its core while others wait for calls: the published
//! measurement of the waiter that holds its core, and of the one that doesn't.
//!
//! On each CPU there are
//! * a *caller* of the lowest priority: a little work of its own, then a call to all other CPUs,
//!   for which it waits; again and again;
//! * the *call target*, which has windows of 1 to 20 ms in which it takes no call: its handler of
//!   another call sleeps, so that the core itself is free;
//! * a *ticker*, urgent, that wants the core every four milliseconds for a moment. Its wait is the
//!   time in which it was ready and somebody else had the core.
//!
//! The longest wait of each interval of 20 ms counts, on each CPU. Longer ones would be filled by
//! the machine's own hiccups: on a kernel that isn't preemptible, a thread of its own that scans
//! memory is some of them each second. The floor that is measured beside shows what they make.

mod core_hold;

use std::time::{Duration, Instant};

use corewise_smp::Smp;
use corewise_sync::{hint, thread, time};
use corewise_topology::{CpuId, CpuSet, Machine};
use fastrand::Rng;

use crate::bench::{Cases, Workload, variants};
use crate::calls::{base, priority, targets};
use crate::meter::{percentiles, sleep_exactly};
use crate::start::together;
use crate::{BenchError, Job, Line};
use core_hold::{Core, Ticker};

/// How a core is held by a caller that waits, and wanted by a task that is urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitStyle {
    /// By real-time priorities: as in the kernel, nearly.
    Priority,
    /// As a lock, which stands for the core: where no priority may be had.
    Lock,
}

/// The way is the best one that the process may use.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::Fit(
        |parts| matches!(parts, ["held_span", "priority" | "lock"]),
        |on| {
            // Only where the system tells how long a thread was ready to run and didn't.
            let counted = priority::RunDelay::of_this_thread().is_ok();
            let way = if on.urgent && counted { "priority" } else { "lock" };
            vec![format!("held_span/{way}")]
        },
    ),
    quick: |_, _| true,
    numbers: |job, _, on| base(job, on),
    variants: |_, _| variants(&["corewise", "before", "idle"], false),
    run: |job, _| {
        let waiter = match job.runtime.as_str() {
            "corewise" => Waiter::GivesItBack,
            "before" => Waiter::HoldsItsCore,
            "idle" => Waiter::Nobody,
            _ => return job.unknown(),
        };
        let way = if job.case == "held_span/lock" { WaitStyle::Lock } else { WaitStyle::Priority };
        run(job, &Machine::live()?, way, waiter)
    },
};

/// The caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiter {
    /// Nobody: it sleeps a little instead. The rest is what the machine itself makes an urgent
    /// task wait.
    Nobody,
    /// One that keeps its core from before it chooses whom to call until the last has answered, as
    /// the kernel did.
    HoldsItsCore,
    /// [`corewise_smp::ManyCall::wait`].
    GivesItBack,
}

/// The caller's own work between two calls.
const WORK: Duration = Duration::from_micros(100);
/// The shortest and the longest window, in microseconds.
const WINDOW_US: (u64, u64) = (1_000, 20_000);
/// The shortest and the longest pause between two windows.
const PAUSE_US: (u64, u64) = (2_000, 12_000);
/// Windows come on time, for any owner of the CPU: they stand for hardware.
const WINDOW_LEVEL: u8 = 60;

/// Of the threads of a CPU, by their numbers; the third makes windows.
const TICKER: usize = 0;
const CALLER: usize = 1;

/// What one of the threads has found: waits of an urgent task, and how many calls it made.
type ThreadSamples = (Vec<u64>, u64);

fn run(job: &Job, machine: &Machine, way: WaitStyle, waiter: Waiter) -> Result<Line, BenchError> {
    let smp = targets(machine)?;
    let cpus: Vec<CpuId> = machine.online().iter().collect();
    let cores: Vec<Core> = cpus.iter().map(|_| Core::new(way)).collect();
    let length = Duration::from_millis(job.length_ms);
    let roles = ["ticker", "caller", "window"];
    let names: Vec<String> =
        cpus.iter().flat_map(|cpu| roles.map(|role| format!("{role}/{cpu}"))).collect();
    let of = |number: usize| (cpus[number / roles.len()], &cores[number / roles.len()]);
    let ready = |number: usize| {
        let (cpu, core) = of(number);
        machine.pin_current_thread(&CpuSet::from_iter([cpu]))?;
        // Those that come on time.
        if number % roles.len() != CALLER {
            sleep_exactly();
        }
        let ready = match number % roles.len() {
            TICKER => return Ticker::new(core).map(Some).map_err(BenchError::Thread),
            CALLER => {
                priority::lowest();
                Ok(())
            }
            _ if way == WaitStyle::Priority => priority::real_time(WINDOW_LEVEL),
            _ => Ok(()),
        };
        ready.map(|()| None).map_err(BenchError::Thread)
    };
    let body = |number: usize, ticker: Option<Ticker>| {
        let ((cpu, core), until) = (of(number), time::now() + length);
        match (number % roles.len(), ticker) {
            (_, Some(ticker)) => Ok((tick(job, ticker, until)?, 0)),
            (CALLER, _) => Ok((Vec::new(), call(machine, cpu, core, &smp, waiter, until)?)),
            _ => {
                make_windows(cpu, &smp, job.seed ^ u64::from(cpu.number()), until)?;
                Ok((Vec::new(), 0))
            }
        }
    };
    let found: Vec<ThreadSamples> = together(&names, ready, body)?.given;
    let calls: u64 = found.iter().map(|(_, calls)| calls).sum();
    let mut waits: Vec<u64> = found.into_iter().flat_map(|(waits, _)| waits).collect();
    let mut line = job.line();
    percentiles(&mut line, "held", &mut waits, &[50.0, 99.0, 100.0]);
    if waiter != Waiter::Nobody {
        line.set("calls_per_second", calls as f64 / length.as_secs_f64());
    }
    Ok(line)
}

/// The ticker: the longest wait of each interval.
fn tick(job: &Job, mut ticker: Ticker, until: Instant) -> Result<Vec<u64>, BenchError> {
    let (mut longest, mut waits) = (0, Vec::new());
    let tick = Duration::from_micros(job.tick_us.into());
    let interval = Duration::from_millis(job.interval_ms.into());
    let mut interval_ends = time::now() + interval;
    while time::now() < until {
        // Its lateness is the system timer's, which isn't what is asked here.
        thread::sleep(tick);
        longest = longest.max(ticker.waited().map_err(BenchError::Thread)?);
        if time::now() >= interval_ends {
            waits.push(std::mem::take(&mut longest));
            interval_ends += interval;
        }
    }
    Ok(waits)
}

/// Keeps the CPU's target from taking calls, now and then.
fn make_windows(cpu: CpuId, smp: &Smp, seed: u64, until: Instant) -> Result<(), BenchError> {
    let mut rng = Rng::with_seed(seed);
    let mut between = |(least, most): (u64, u64)| Duration::from_micros(rng.u64(least..=most));
    while time::now() < until {
        thread::sleep(between(PAUSE_US));
        let window = between(WINDOW_US);
        let asleep = smp.call(cpu, move || thread::sleep(window));
        asleep.ok().and_then(|call| call.wait().ok()).ok_or(BenchError::WrongAnswer)?;
    }
    Ok(())
}

/// The caller: how many calls it made.
fn call(
    machine: &Machine,
    cpu: CpuId,
    core: &Core,
    smp: &Smp,
    waiter: Waiter,
    until: Instant,
) -> Result<u64, BenchError> {
    let mut others = machine.online();
    if others.len() > 1 {
        others.remove(cpu);
    }
    let (mut calls, mut number) = (0, 0u64);
    while time::now() < until {
        let work_ends = time::now() + WORK;
        while time::now() < work_ends {
            number = std::hint::black_box(number + 1);
        }
        let answers = match waiter {
            Waiter::Nobody => {
                thread::sleep(WORK);
                continue;
            }
            Waiter::HoldsItsCore => {
                core.hold().map_err(BenchError::Thread)?;
                let call = smp.call_each(&others, move |_| number);
                while !call.is_complete() {
                    hint::spin_loop();
                }
                let answers = call.wait();
                core.release().map_err(BenchError::Thread)?;
                answers
            }
            Waiter::GivesItBack => core.call(|| smp.call_each(&others, move |_| number).wait()),
        };
        let answers = answers.into_values().map_err(|_| BenchError::WrongAnswer)?;
        if answers.len() != others.len() || answers.iter().any(|(_, answer)| *answer != number) {
            return Err(BenchError::WrongAnswer);
        }
        calls += 1;
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::tests::job;

    #[test]
    fn each_waiter_is_measured_in_each_way_that_is_allowed() {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        for way in [WaitStyle::Lock, WaitStyle::Priority] {
            let may = priority::may_be_real_time() && priority::RunDelay::of_this_thread().is_ok();
            if way == WaitStyle::Priority && !may {
                continue;
            }
            for waiter in [Waiter::Nobody, Waiter::HoldsItsCore, Waiter::GivesItBack] {
                let job = Job { length_ms: 250, ..job("held_span/lock", 2) };
                let line = run(&job, &machine, way, waiter).unwrap();
                assert!(line.metrics["held_p50"] <= line.metrics["held_max"]);
                assert_eq!(line.metrics.contains_key("calls_per_second"), waiter != Waiter::Nobody);
            }
        }
    }
}
