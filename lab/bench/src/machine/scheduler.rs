//! Two threads of one CPU: a switch, and the time slice of a thread that computes.

use corewise_topology::CpuId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::{Scheduler, Switch};
use rustix::thread::sched_yield;

use crate::error::BenchError;

use super::lab::{Apart, Lab, OVER, figure, join};

/// Time for the switches.
const SWITCHES: Duration = Duration::from_millis(300);
/// Round trips of a batch of switches.
const TRIPS: u32 = 50;
/// Time for the slices, which last milliseconds each.
const SLICES: Duration = Duration::from_millis(2_500);
/// Least number of slices.
const LEAST: usize = 20;

/// Measures a switch: two threads of one CPU pass a turn by `sched_yield`.
pub(super) fn switch(lab: &Lab<'_>, cpu: CpuId) -> Result<Switch, BenchError> {
    let turn = Apart(AtomicU32::new(0));
    // Waits until the turn is `expected`, then passes it on. False once the turns are over.
    let pass = |expected: u32| {
        loop {
            match turn.0.load(Ordering::Acquire) {
                OVER => return false,
                now if now == expected => break,
                _ => sched_yield(),
            }
        }
        turn.0.store(expected + 1, Ordering::Release);
        true
    };
    thread::scope(|scope| {
        let partner = lab.start(scope, cpu, || (1..).step_by(2).all(pass))?;
        let leader = lab.start(scope, cpu, || {
            let mut next = 0;
            let mut batch = || {
                for _ in 0..TRIPS {
                    pass(next);
                    next += 2;
                }
            };
            batch();
            lab.timed(9, lab.budget(SWITCHES), 2 * TRIPS, batch)
        });
        let yields = leader.and_then(join);
        turn.0.store(OVER, Ordering::Release);
        join(partner)?;
        Ok(Switch { yield_ns: figure(&yields?)? })
    })
}

/// Measures the time slice: two threads compute on one CPU.
pub(super) fn slices(lab: &Lab<'_>, cpu: CpuId) -> Result<Scheduler, BenchError> {
    // The thread that ran last, and its start. The two share a CPU and never run at once, but one
    // may lose the CPU between two steps.
    let (last, since) = (AtomicU32::new(0), AtomicU64::new(0));
    let burn = |nth: usize, over: &AtomicBool| {
        let me = nth as u32 + 1;
        let mut slices = Vec::new();
        let end = Instant::now() + lab.budget(SLICES);
        while !over.load(Ordering::Relaxed) {
            let before = last.swap(me, Ordering::AcqRel);
            if before == me {
                continue;
            }
            let now = lab.now();
            let began = since.swap(now, Ordering::AcqRel);
            // The first thread has no predecessor.
            if before != 0 && began != 0 {
                slices.push(now.saturating_sub(began) as f64);
            }
            if slices.len() >= LEAST && Instant::now() >= end {
                over.store(true, Ordering::Relaxed);
            }
        }
        slices
    };
    let slices = lab.on_all(&[cpu; 2], burn)?;
    Ok(Scheduler { slice_ns: figure(&slices)? })
}
