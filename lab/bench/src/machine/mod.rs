//! Costs of this machine, in nanoseconds: lines between CPUs, calls into the system, wake-ups,
//! switches, the allocator. `lab/machine.md` says how each figure is made, and gives its limits.
//!
//! All of it runs in this process, on threads that are pinned to one CPU each, with ordinary
//! priority. The atomics are the standard ones: they measure the machine, also if the workloads run
//! on a model.

mod allocator;
mod contended;
mod distance;
mod facts;
mod lab;
mod line;
mod list;
mod noise;
mod scheduler;
mod system;
mod wake;

use std::collections::BTreeMap;

use corewise_costs::{Costs, Distance, Figure, Thread, Transfer, VERSION};
use corewise_topology::{CpuId, Machine};

use crate::bench::Effort;
use crate::error::BenchError;
use crate::load::Load;

use distance::{MOST_CPUS, Pairs, choose};
use lab::{Lab, figure};

/// A measurement to make.
#[derive(Debug, Clone)]
pub struct Plan {
    /// About ten seconds, or less than a minute.
    pub effort: Effort,
    /// Time of the measurement, for the file.
    pub date: String,
    /// Commit of the program, for the file.
    pub commit: String,
}

/// Measures the machine. Blocks for about ten seconds, or less than a minute; longer if other
/// processes take the CPUs.
///
/// # Errors
/// None of the CPUs may be used, or the system gives no thread or no memory.
pub fn measure(machine: &Machine, plan: &Plan) -> Result<Costs, BenchError> {
    let online = machine.online();
    let topology = machine.topology();
    let cpus = choose(topology, &online, MOST_CPUS);
    let Some(&first) = cpus.first() else {
        return Err(BenchError::Nothing { what: "CPU that may be used" });
    };
    let pairs = Pairs::new(topology, &cpus);
    let all: Vec<CpuId> = online.iter().collect();
    let load = Load::watch();
    let lab = Lab::new(machine, plan.effort, first)?;
    Ok(Costs {
        version: VERSION,
        machine: Some(facts::machine(&all, plan)),
        line: line::measure(&lab, first)?,
        call: system::calls(&lab, first, &cpus)?,
        switch: scheduler::switch(&lab, first)?,
        thread: Thread {
            spawn_join_ns: system::spawn_join(&lab, first)?,
            spin_hint_ns: system::spin_hint(&lab, first)?,
        },
        allocator: Some(allocator::measure(&lab, first, &cpus)?),
        contended: contended::measure(&lab, &cpus)?,
        distance: transfers(&lab, &pairs)?,
        scheduler: scheduler::slices(&lab, first)?,
        wake: wake::measure(&lab, first, &pairs)?,
        // It comes last: it covers all of the above.
        noise: Some(noise::noise(&load, machine, all.len())),
    })
}

fn transfers(lab: &Lab<'_>, pairs: &Pairs) -> Result<BTreeMap<Distance, Transfer>, BenchError> {
    let known = pairs.distances();
    let transfer = |&distance: &Distance| {
        let [list, array, locked, read] = list::measure(lab, pairs, distance, known.len())?;
        let transfer = Transfer {
            list_ns: figure(&list)?,
            array_ns: figure(&array)?,
            array_locked_ns: Some(figure(&locked)?),
            list_read_ns: Figure::of(&read),
        };
        Ok((distance, transfer))
    };
    known.iter().map(transfer).collect()
}
