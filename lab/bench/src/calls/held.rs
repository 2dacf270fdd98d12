//! The wait of an urgent task for its core while others wait for calls. This is the published
//! measurement of the waiter that holds its core, and of the one that doesn't.
//!
//! On each CPU there are
//! * a *caller* of the lowest priority: it works a little, calls all other CPUs and waits for them,
//!   again and again;
//! * the *call target*. In windows of 1 to 20 ms it takes no call: its handler of another call
//!   sleeps, so the core itself is free;
//! * a *ticker*, urgent, which wants the core every four milliseconds for a moment. Its wait is the
//!   time in which it was ready and another thread had the core.
//!
//! On each CPU, the longest wait of each interval of 20 ms counts. A longer interval would contain
//! a delay of the machine each time, since a kernel that isn't preemptible has a thread that scans
//! memory. The runtime `idle` measures that floor.

use std::io;
use std::time::{Duration, Instant};

use corewise_smp::Smp;
use corewise_sync::{hint, thread, time};
use corewise_topology::{CpuId, CpuSet, Machine};
use fastrand::Rng;

use crate::bench::{Cases, Workload, variants};
use crate::calls::priority::{self, run_delay};
use crate::calls::{base, targets};
use crate::meter::{percentiles, sleep_exactly};
use crate::start::together;
use crate::{BenchError, Job, Line};

/// Priority of a caller that holds its core: above the ticker, below the call targets. Interrupts
/// get through, tasks don't.
const HELD_LEVEL: u8 = 45;
/// Priority of the ticker.
const TICKER_LEVEL: u8 = 40;

pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("held_span/priority"),
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
        if !priority::may_be_real_time() || run_delay().is_err() {
            return Ok(job.cannot("real-time priorities or schedstat aren't to be had here"));
        }
        run(job, &Machine::live()?, waiter)
    },
};

/// Behaviour of the callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiter {
    /// The caller makes no calls and sleeps a little instead: the machine's own share of the waits.
    Nobody,
    /// The caller keeps its core from the choice of the CPUs until the last answer, as the kernel
    /// did.
    HoldsItsCore,
    /// The caller waits by [`corewise_smp::ManyCall::wait`].
    GivesItBack,
}

/// The caller's own work between two calls.
const WORK: Duration = Duration::from_micros(100);
/// The shortest and the longest window, in microseconds.
const WINDOW_US: (u64, u64) = (1_000, 20_000);
/// The shortest and the longest pause between two windows.
const PAUSE_US: (u64, u64) = (2_000, 12_000);
/// Priority of the windows. They stand for hardware, and come on time even if the CPU is busy.
const WINDOW_LEVEL: u8 = 60;

/// Number of the ticker among the threads of a CPU.
const TICKER: usize = 0;
/// Number of the caller among the threads of a CPU. The third thread makes windows.
const CALLER: usize = 1;

/// Results of a thread: waits of an urgent task, and the number of calls.
type ThreadSamples = (Vec<u64>, u64);

fn run(job: &Job, machine: &Machine, waiter: Waiter) -> Result<Line, BenchError> {
    let smp = targets(machine)?;
    let cpus: Vec<CpuId> = machine.online().iter().collect();
    let length = Duration::from_millis(job.length_ms);
    let roles = ["ticker", "caller", "window"];
    let names: Vec<String> =
        cpus.iter().flat_map(|cpu| roles.map(|role| format!("{role}/{cpu}"))).collect();
    let ready = |number: usize| {
        machine.pin_current_thread(&CpuSet::from_iter([cpus[number / roles.len()]]))?;
        let role = number % roles.len();
        if role == CALLER {
            priority::lowest();
            return Ok(());
        }
        sleep_exactly();
        let level = if role == TICKER { TICKER_LEVEL } else { WINDOW_LEVEL };
        priority::real_time(level).map_err(BenchError::Thread)
    };
    let body = |number: usize, ()| {
        let (cpu, until) = (cpus[number / roles.len()], time::now() + length);
        match number % roles.len() {
            TICKER => Ok((tick(job, until).map_err(BenchError::Thread)?, 0)),
            CALLER => Ok((Vec::new(), call(machine, cpu, &smp, waiter, until)?)),
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

/// Runs the ticker. Returns the longest wait of each interval.
fn tick(job: &Job, until: Instant) -> io::Result<Vec<u64>> {
    let (mut longest, mut waits, mut delay) = (0, Vec::new(), run_delay()?);
    let tick = Duration::from_micros(job.tick_us.into());
    let interval = Duration::from_millis(job.interval_ms.into());
    let mut interval_ends = time::now() + interval;
    while time::now() < until {
        // The delay doesn't contain the lateness of the system's timer.
        thread::sleep(tick);
        let before = std::mem::replace(&mut delay, run_delay()?);
        longest = longest.max(delay.saturating_sub(before));
        if time::now() >= interval_ends {
            waits.push(std::mem::take(&mut longest));
            interval_ends += interval;
        }
    }
    Ok(waits)
}

/// Makes windows in which the CPU's target takes no calls.
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

/// Runs a caller. Returns the number of its calls.
fn call(
    machine: &Machine,
    cpu: CpuId,
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
                priority::real_time(HELD_LEVEL).map_err(BenchError::Thread)?;
                let call = smp.call_each(&others, move |_| number);
                while !call.is_complete() {
                    hint::spin_loop();
                }
                let answers = call.wait();
                priority::ordinary().map_err(BenchError::Thread)?;
                answers
            }
            Waiter::GivesItBack => smp.call_each(&others, move |_| number).wait(),
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
    fn each_waiter_is_measured_if_priorities_are_allowed() {
        let machine = Machine::synthetic("core:2 pu:1").unwrap();
        if !priority::may_be_real_time() || run_delay().is_err() {
            return;
        }
        for waiter in [Waiter::Nobody, Waiter::HoldsItsCore, Waiter::GivesItBack] {
            let job = Job { length_ms: 250, ..job("held_span/priority", 2) };
            let line = run(&job, &machine, waiter).unwrap();
            assert!(line.metrics["held_p50"] <= line.metrics["held_max"]);
            assert_eq!(line.metrics.contains_key("calls_per_second"), waiter != Waiter::Nobody);
        }
    }
}
