//! What this machine costs, in nanoseconds: lines between CPUs, calls into the system, wake-ups,
//! switches, the allocator. `docs/machine.md` says how each figure is made, and what it can't tell.
//!
//! All of it runs in this process, on threads that are pinned to one CPU each, with ordinary
//! priority. The atomics are the standard ones: what is measured is the machine, also where the
//! workloads run on a model of one.

mod allocator;
mod contended;
mod distance;
mod facts;
mod lab;
mod line;
mod list;
mod noise;
mod pingpong;
mod scheduler;
mod system;
mod wake;

use std::collections::BTreeMap;
use std::time::Instant;

use corewise_costs::{Costs, Distance, Figure, Matrix, Thread, Transfer, VERSION};
use corewise_topology::{CpuId, CpuSet, Machine};

pub use distance::{MOST_CPUS, choose, distance};

use crate::bench::Effort;
use crate::error::BenchError;
use crate::load::Load;
use distance::Pairs;
use lab::{Lab, figure};
use pingpong::Rallies;

const NO_MEMORY: BenchError = BenchError::Nothing { what: "memory" };

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Only these CPUs, of those that the process may use; nothing for all of them.
    pub cpus: Option<CpuSet>,
    /// About ten seconds, or less than a minute.
    pub effort: Effort,
    /// When, for the file.
    pub date: String,
    /// Of the program, for the file.
    pub commit: String,
}

/// A part begins.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// How much has been done, in parts of [`Step::ALL`], by time.
    pub done: u32,
    /// What is measured now.
    pub what: &'static str,
}

impl Step {
    /// When all is done.
    pub const ALL: u32 = 100;
}

/// Measures the machine. Blocks for about ten seconds, or less than a minute; longer where other
/// processes take the CPUs. `tell` is called on this thread as each part begins.
///
/// # Errors
/// None of the CPUs may be used, or the system gives no thread or no memory.
pub fn measure(
    machine: &Machine,
    plan: &Plan,
    mut tell: impl FnMut(Step),
) -> Result<Costs, BenchError> {
    let began = Instant::now();
    let online = machine.online();
    let wanted =
        plan.cpus.as_ref().map_or_else(|| online.clone(), |cpus| cpus.intersection(&online));
    let topology = machine.topology();
    let cpus = choose(topology, &wanted, MOST_CPUS);
    let Some(&first) = cpus.first() else {
        return Err(BenchError::Nothing { what: "CPU that may be used" });
    };
    let pairs = Pairs::new(topology, &cpus);
    let all: Vec<CpuId> = wanted.iter().collect();
    let load = Load::watch();
    let mut step = |done, what| tell(Step { done, what });

    step(0, "the clock");
    let lab = Lab::new(machine, plan.effort, first)?;
    step(1, "lines of one CPU");
    let line = line::measure(&lab, first, &cpus)?;
    step(8, "calls into the system");
    let call = system::calls(&lab, first, &cpus)?;
    step(12, "switches and threads");
    let switch = scheduler::switch(&lab, first)?;
    let thread = Thread {
        spawn_join_ns: system::spawn_join(&lab, first)?,
        spin_hint_ns: system::spin_hint(&lab, first)?,
    };
    step(16, "the allocator");
    let allocator = allocator::measure(&lab, first, &cpus)?;
    step(22, "lines that all CPUs write");
    let contended = contended::measure(&lab, &cpus)?;
    step(28, "lines from CPU to CPU");
    let rallies = pingpong::measure(&lab, &pairs)?;
    let matrix = matrix(&cpus, &rallies);
    step(58, "lists and arrays from CPU to CPU");
    let distance = transfers(&lab, &pairs, &rallies)?;
    step(68, "how the system shares out a CPU");
    let scheduler = scheduler::measure(&lab, first)?;
    step(73, "wake-ups");
    let wake = wake::measure(&lab, first, &pairs)?;

    let noise = noise::noise(&load, &lab, machine, all.len());
    let took = began.elapsed();
    Ok(Costs {
        version: VERSION,
        machine: Some(facts::machine(topology, &all, plan, took)),
        noise: Some(noise),
        line,
        distance,
        contended,
        call,
        switch,
        scheduler,
        wake,
        allocator,
        thread,
        matrix: Some(matrix),
    })
}

fn transfers(
    lab: &Lab<'_>,
    pairs: &Pairs,
    rallies: &Rallies,
) -> Result<BTreeMap<Distance, Transfer>, BenchError> {
    let known = pairs.distances();
    let transfer = |&distance: &Distance| {
        let of = pairs.of(distance);
        let pooled = |kind: usize| {
            let all = of.iter().filter_map(|pair| rallies.get(pair)).flat_map(|by| &by[kind]);
            figure(&all.copied().collect::<Vec<f64>>())
        };
        let [list, array, locked, read] = list::measure(lab, pairs, distance, known.len())?;
        let transfer = Transfer {
            pairs: u32::try_from(of.len()).unwrap_or(u32::MAX),
            one_way_ns: pooled(0)?,
            locked_ns: pooled(1)?,
            list_ns: figure(&list)?,
            array_ns: figure(&array)?,
            array_locked_ns: Some(figure(&locked)?),
            list_read_ns: Figure::of(&read),
        };
        Ok((distance, transfer))
    };
    known.iter().map(transfer).collect()
}

fn matrix(cpus: &[CpuId], rallies: &Rallies) -> Matrix {
    let cell = |a: CpuId, b: CpuId, kind: usize| {
        let rally = rallies.get(&(a, b)).or_else(|| rallies.get(&(b, a)));
        rally.and_then(|by| Figure::of(&by[kind])).map_or(0.0, |figure| figure.p50)
    };
    let rows = |kind: usize| {
        cpus.iter().map(|&a| cpus.iter().map(|&b| cell(a, b, kind)).collect()).collect()
    };
    Matrix {
        cpus: cpus.iter().copied().map(CpuId::number).collect(),
        one_way_ns: rows(0),
        locked_ns: rows(1),
    }
}
