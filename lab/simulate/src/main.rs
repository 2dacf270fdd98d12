//! One run of a benchmark's workload on a simulated machine.
//!
//! `cargo xtask sim` builds it with `--cfg sim`, so that the product's crates and the workloads
//! take the simulator's threads, clock and atomics. It prints the benchmark's figures, and an
//! account of the time: the places in the code that waited for cache lines, how often, and from
//! what distance the lines came. `lab/sim.md` states the accuracy of the figures.
//!
//! * `costs.rs`: the costs from a file of `corewise-bench machine`;
//! * `allocator.rs`: allocations and their costs;
//! * `chance.rs`: random numbers, the same in each run;
//! * `names.rs`: the file and field that a place in the code touches;
//! * `account.rs`: an item's share of all counts; `print.rs`: its text;
//! * `workload.rs`: the run that the words name;
//! * `runs.rs`: several runs at once; `counts.rs`: their line transfers and wake-ups beside the
//!   recorded ones.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own")]

mod account;
mod allocator;
mod chance;
mod costs;
mod counts;
mod names;
mod print;
mod runs;
mod workload;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use corewise_sim::{Machine, Place};
use corewise_topology::Topology;

/// Run workloads on a simulated machine
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask sim",
    args_conflicts_with_subcommands = true,
    after_help = format!("Workloads:\n{}", workload::list())
)]
struct Words {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    what: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Count line transfers and wake-ups of some runs, and fail if there are more than recorded
    Counts {
        /// The recorded counts
        #[arg(value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/counts.toml"))]
        recorded: String,
        /// Record the present counts
        #[arg(long)]
        renew: bool,
    },
}

/// Costs of a well-known machine.
const COSTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/costs-intel-16cpu.toml");

#[derive(Debug, Args)]
struct RunArgs {
    /// The machine: a description in hwloc's language, xml:FILE or sysfs:DIR
    #[arg(long, value_name = "MACHINE", default_value = "l3:1 core:16")]
    machine: String,
    /// The machine's costs: a file that 'corewise-bench machine' wrote [default: those of an Intel
    /// machine of 16 CPUs]
    #[arg(long, value_name = "FILE", default_value = COSTS, hide_default_value = true)]
    costs: String,
    /// A workload of the list below, or the beginning of its name
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// The runtime, by its name in 'corewise-bench': corewise/cpu, corewise/cache_shard, before ...
    #[arg(long, value_name = "NAME", default_value = "corewise")]
    runtime: String,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Permit real-time priorities
    #[arg(long)]
    real_time: bool,
    /// Number of fields to print. With 0, places are named as file:line, which is quicker
    #[arg(long, value_name = "N", default_value_t = 12)]
    fields: usize,
    /// Print one line of JSON: the benchmark's figures and an item's share of all counts
    #[arg(long)]
    json: bool,
    /// Other numbers of the workload, such as items=20000; without --workload the whole run, as
    /// 'corewise-bench --run' takes it
    #[arg(value_name = "KEY=VALUE")]
    words: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Words::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &Words) -> Result<(), String> {
    if !cfg!(sim) {
        return Err("this program has to be built for the simulator: 'cargo xtask sim' does".into());
    }
    match &words.task {
        Some(Task::Counts { recorded, renew: true }) => counts::renew(recorded),
        Some(Task::Counts { recorded, renew: false }) => counts::compare(recorded),
        None => simulate(&words.what),
    }
}

fn simulate(what: &RunArgs) -> Result<(), String> {
    let (topology, description) = topology(&what.machine)?;
    let machine = machine(&topology)?.described(&description).with_real_time(what.real_time);
    let costs = costs::read(&what.costs)?;
    let words = match &what.workload {
        Some(workload) => workload::named(workload, &what.runtime, machine.cpus(), &what.words)?,
        None if what.words.is_empty() => {
            return Err("no workload: add '--workload storm', or another one of --help".into());
        }
        None => what.words.clone(),
    };
    let run = workload::read(&words)?;
    let began = std::time::Instant::now();
    let outcome = corewise_sim::run(machine, costs, what.seed, run);
    let took = began.elapsed();
    let line = outcome.value.as_ref().map_err(ToString::to_string)?.clone();
    print::print_run(what, &words, &line, &outcome, took);
    Ok(())
}

/// Reads the topology. Returns it with the description that the machine's threads find.
fn topology(from: &str) -> Result<(Topology, String), String> {
    let read = match from.split_once(':') {
        Some(("xml", file)) => Topology::from_xml(file),
        Some(("sysfs", dir)) => Topology::from_sysfs(dir),
        _ => {
            let threads = format!("{from} pu:1");
            return match Topology::synthetic(from) {
                Ok(topology) => Ok((topology, from.to_owned())),
                // In hwloc's language the last level is the hardware threads.
                Err(error) => match Topology::synthetic(&threads) {
                    Ok(topology) => Ok((topology, threads)),
                    Err(_) => Err(error.to_string()),
                },
            };
        }
    };
    read.map(|topology| (topology, from.to_owned())).map_err(|error| error.to_string())
}

/// Creates the machine of the online CPUs. Unknown caches and nodes count as shared.
///
/// # Errors
/// There is no CPU, or there are too many for the simulator.
fn machine(topology: &Topology) -> Result<Machine, String> {
    let cpus: Vec<_> = topology.cpus().iter().filter(|cpu| cpu.online).collect();
    if cpus.is_empty() || cpus.len() > Machine::MOST_CPUS {
        let most = Machine::MOST_CPUS;
        return Err(format!("a machine of {} CPUs: 1 to {most} can be simulated", cpus.len()));
    }
    let place = |cpu: &corewise_topology::Cpu| Place {
        core: cpu.core.unwrap_or(cpu.cpu.number()),
        llc: cpu.llc.unwrap_or(0),
        node: cpu.node.unwrap_or(0),
    };
    Ok(Machine::new(cpus.into_iter().map(place).collect()))
}
