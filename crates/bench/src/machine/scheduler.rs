//! Two threads of one CPU: a switch, and how long one that computes keeps the CPU.

use corewise_topology::CpuId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use corewise_costs::{Figure, Scheduler};
use rustix::thread::{futex, sched_yield};

use crate::error::BenchError;

use super::lab::{Apart, Lab, OVER, figure, join, tail};

/// Of each kind of switch.
const EACH: Duration = Duration::from_millis(300);
/// For slices, which last milliseconds.
const SLICES: Duration = Duration::from_millis(2_500);
/// Slices at least.
const LEAST: usize = 20;
/// Round trips of a batch.
const TRIPS: u32 = 50;

/// Passes a turn from one to the other. `wait` returns once the turn is `mine`, or over.
fn passing(
    lab: &Lab<'_>,
    cpu: CpuId,
    pass: fn(&AtomicU32, u32),
    wait: fn(&AtomicU32, u32),
) -> Result<Figure, BenchError> {
    let turn = Apart(AtomicU32::new(0));
    let samples = thread::scope(|scope| {
        let other = lab.start(scope, cpu, || {
            loop {
                wait(&turn.0, 1);
                if turn.0.load(Ordering::Acquire) == OVER {
                    return;
                }
                pass(&turn.0, 0);
            }
        })?;
        let one = lab.start(scope, cpu, || {
            let batch = || {
                for _ in 0..TRIPS {
                    pass(&turn.0, 1);
                    wait(&turn.0, 0);
                }
            };
            batch();
            lab.timed(9, lab.budget(EACH), 2 * TRIPS, batch)
        });
        let samples = one.and_then(join);
        pass(&turn.0, OVER);
        join(other)?;
        samples
    })?;
    figure(&samples)
}

/// Both are ready all the time.
pub(super) fn by_yield(lab: &Lab<'_>, cpu: CpuId) -> Result<Figure, BenchError> {
    fn pass(turn: &AtomicU32, whose: u32) {
        turn.store(whose, Ordering::Release);
    }
    fn wait(turn: &AtomicU32, mine: u32) {
        loop {
            let now = turn.load(Ordering::Acquire);
            if now == mine || now == OVER {
                return;
            }
            sched_yield();
        }
    }
    passing(lab, cpu, pass, wait)
}

/// The thread that passes the turn wakes the other one, and sleeps.
pub(super) fn by_block(lab: &Lab<'_>, cpu: CpuId) -> Result<Figure, BenchError> {
    fn pass(turn: &AtomicU32, whose: u32) {
        turn.store(whose, Ordering::Release);
        let _ = futex::wake(turn, futex::Flags::PRIVATE, 1);
    }
    fn wait(turn: &AtomicU32, mine: u32) {
        loop {
            let now = turn.load(Ordering::Acquire);
            if now == mine || now == OVER {
                return;
            }
            // However it ends, the turn is looked at again.
            let _ = futex::wait(turn, futex::Flags::PRIVATE, now, None);
        }
    }
    passing(lab, cpu, pass, wait)
}

/// Two threads compute on one CPU.
pub(super) fn measure(lab: &Lab<'_>, cpu: CpuId) -> Result<Scheduler, BenchError> {
    // The thread that ran last, and since when. Only one of the two runs at a time: on one CPU nothing is
    // written at the same moment, but one may lose the CPU between two steps.
    let (last, since) = (AtomicU32::new(0), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    let burn = |nth: usize| {
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
            // The first one has nobody before it.
            if before != 0 && began != 0 {
                slices.push(now.saturating_sub(began) as f64);
            }
            if slices.len() >= LEAST && Instant::now() >= end {
                over.store(true, Ordering::Relaxed);
            }
        }
        slices
    };
    let slices = lab.on_all(&[cpu; 2], &over, burn)?;
    Ok(Scheduler { slice_ns: tail(&slices)? })
}
