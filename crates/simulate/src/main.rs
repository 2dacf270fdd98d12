//! One run of a benchmark's workload on a simulated machine.
//!
//! `cargo xtask sim` builds it with `--cfg sim`, so that the product's crates and the workloads take the simulator's
//! threads, clock and atomics, and gives it its words. It prints the benchmark's figures, and where the time went: the
//! places in the code that waited for cache lines, with how often, and how far the lines came. `docs/sim.md` says how
//! far the figures can be believed.
//!
//! * `costs.rs`: the costs from a file of `corewise bench machine`;
//! * `allocator.rs`: allocations, which are charged for as well;
//! * `chance.rs`: random numbers, which are the same in each run;
//! * `told.rs`: what it prints;
//! * `workload.rs`: the run that the words ask for;
//! * `check.rs`: the model beside a file of records.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own")]

mod allocator;
mod chance;
mod check;
mod costs;
mod told;
mod workload;

use std::process::ExitCode;

use clap::Parser;
use corewise_sim::{Machine, Mask, Place};
use corewise_topology::{CpuSet, Topology};

/// Run one workload on a simulated machine
#[derive(Debug, Parser)]
struct Args {
    /// The machine: a description in hwloc's language, xml:FILE or sysfs:DIR
    #[arg(long, value_name = "MACHINE", default_value = "l3:1 core:16")]
    machine: String,
    /// What things cost there: a file that 'corewise bench machine' wrote
    #[arg(long, value_name = "FILE")]
    costs: String,
    /// A cost that differs from the file: NAME=NANOSECONDS; may be given again
    #[arg(long, value_name = "NAME=NS")]
    cost: Vec<String>,
    /// What chance begins with
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads of other programs that burn a CPU each, wherever the scheduler puts them
    #[arg(long, value_name = "N", default_value_t = 0)]
    neighbours: usize,
    /// CPUs that a thread of another program burns, pinned to each: 0-3,8
    #[arg(long, value_name = "CPUS")]
    burn: Option<CpuSet>,
    /// Permit real-time priorities, which an ordinary user isn't
    #[arg(long)]
    real_time: bool,
    /// Tell of so many places in the code
    #[arg(long, value_name = "N", default_value_t = 12)]
    sites: usize,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// Simulate the runs of a file of records, and print the model beside what was measured
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "machine"])]
    check: Option<String>,
    /// The run, as 'corewise bench --run' takes it: the benchmark's name, workqueue unless another stands here,
    /// and its words
    #[arg(value_name = "WORDS", required_unless_present = "check")]
    words: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    if !cfg!(sim) {
        return Err("this program has to be built for the simulator: 'cargo xtask sim' does".into());
    }
    if let Some(file) = &args.check {
        return check::check(file, &args.costs, &args.cost);
    }
    let topology = topology(&args.machine)?;
    let mut costs = costs::read(&args.costs)?;
    costs::change(&mut costs, &args.cost)?;
    let run = workload::read(&args.words)?;
    let machine = machine(&topology).described(&args.machine).with_real_time(args.real_time);
    let neighbours = neighbours(args, machine.cpus())?;
    let began = std::time::Instant::now();
    let outcome = corewise_sim::run(machine, costs, args.seed, move || {
        neighbours.into_iter().for_each(corewise_sim::neighbour);
        run()
    });
    let took = began.elapsed();
    let line = match outcome.value {
        Ok(Some(ref line)) => line.clone(),
        Ok(None) => return Err("there is no such runtime here".into()),
        Err(ref error) => return Err(error.to_string()),
    };
    told::tell(args, &line, &outcome, took);
    Ok(())
}

/// The CPUs of each thread that others burn.
fn neighbours(args: &Args, cpus: usize) -> Result<Vec<Mask>, String> {
    let mut all = vec![Mask::first(cpus); args.neighbours];
    for cpu in args.burn.iter().flat_map(CpuSet::iter) {
        if cpu as usize >= cpus {
            return Err(format!("there is no CPU {cpu} to burn: the machine has {cpus}"));
        }
        let mut mask = Mask::EMPTY;
        mask.set(cpu as usize);
        all.push(mask);
    }
    Ok(all)
}

fn topology(from: &str) -> Result<Topology, String> {
    let read = match from.split_once(':') {
        Some(("xml", file)) => Topology::from_xml(file),
        Some(("sysfs", dir)) => Topology::from_sysfs(dir),
        _ => Topology::synthetic(from),
    };
    read.map_err(|error| error.to_string())
}

/// The places of the CPUs that are online; what isn't known counts as the same.
fn machine(topology: &Topology) -> Machine {
    let cpus = topology.cpus().iter().filter(|cpu| cpu.online);
    let place = |cpu: &corewise_topology::Cpu| Place {
        core: cpu.core.unwrap_or(cpu.cpu),
        llc: cpu.llc.unwrap_or(0),
        node: cpu.node.unwrap_or(0),
    };
    Machine::new(cpus.map(place).collect())
}
