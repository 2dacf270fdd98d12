//! Two threads of one CPU: a switch, and how long one that computes keeps the CPU.

use corewise_topology::CpuId;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use corewise_costs::{Scheduler, Switch};

use crate::error::BenchError;

use super::lab::{Lab, figure, tail};
use super::pingpong::{Hit, by_block, by_yield, play};

/// Of each kind of switch.
const EACH: Duration = Duration::from_millis(300);
/// For slices, which last milliseconds.
const SLICES: Duration = Duration::from_millis(2_500);
/// Slices at least.
const LEAST: usize = 20;
/// Two threads pass a turn.
pub(super) fn switch(lab: &Lab<'_>, cpu: CpuId) -> Result<Switch, BenchError> {
    let [yields, blocks] = play(lab, cpu, cpu, [by_yield as Hit, by_block], 9, lab.budget(EACH))?;
    Ok(Switch { yield_ns: figure(&yields)?, block_ns: figure(&blocks)? })
}

/// Two threads compute on one CPU.
pub(super) fn measure(lab: &Lab<'_>, cpu: CpuId) -> Result<Scheduler, BenchError> {
    // The thread that ran last, and since when. Only one of the two runs at a time: on one CPU
    // nothing is written at the same moment, but one may lose the CPU between two steps.
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
    let slices = lab.on_all(&[cpu; 2], burn)?;
    Ok(Scheduler { slice_ns: tail(&slices)? })
}
