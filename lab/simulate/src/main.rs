//! One run of a benchmark's workload on a simulated machine.
//!
//! `cargo xtask sim` builds it with `--cfg sim`, so that the product's crates and the workloads
//! take the simulator's threads, clock and atomics, and gives it its words. It prints the
//! benchmark's figures, and where the time went: the places in the code that waited for cache
//! lines, with how often, and how far the lines came. `docs/sim.md` says how far the figures can be
//! believed.
//!
//! * `costs.rs`: the costs from a file of `corewise-bench machine`;
//! * `allocator.rs`: allocations, which are charged for as well;
//! * `chance.rs`: random numbers, which are the same in each run;
//! * `names.rs`, `structs.rs`: the type and field that a place in the code touches;
//! * `account.rs`: an item's share of what was counted; `print.rs`: what is printed of it;
//! * `workload.rs`: the run that the words ask for;
//! * `check.rs`: the model beside a file of records;
//! * `counts.rs`: line transfers and wake-ups beside those that were recorded.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of its own")]

mod account;
mod allocator;
mod chance;
mod check;
mod costs;
mod counts;
mod names;
mod print;
mod structs;
mod workload;

use std::process::{Command, ExitCode};

use clap::{Args, Parser, Subcommand};
use corewise_sim::{Machine, Mask, Place};
use corewise_topology::{CpuSet, Topology};

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
    /// Simulate the runs of a file of records, and print the model beside what was measured
    Check {
        /// The records
        #[arg(value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/sapphire-rapids-16.toml"))]
        records: String,
        #[command(flatten)]
        costs: Costs,
    },
    /// Count line transfers and wake-ups of some runs, and fail where there are more than were
    /// recorded
    Counts {
        /// What was recorded
        #[arg(value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/counts.toml"))]
        recorded: String,
        /// Record what is counted now
        #[arg(long)]
        renew: bool,
    },
}

/// Costs of a machine that is known well.
const COSTS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/costs-intel-16cpu.toml");

#[derive(Debug, Args)]
struct Costs {
    /// What things cost there: a file that 'corewise-bench machine' wrote [default: those of an
    /// Intel machine of 16 CPUs]
    #[arg(long, value_name = "FILE", default_value = COSTS, hide_default_value = true)]
    costs: String,
    /// A cost that differs from the file: NAME=NANOSECONDS; may be given again
    #[arg(long, value_name = "NAME=NS")]
    cost: Vec<String>,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The machine: a description in hwloc's language, xml:FILE or sysfs:DIR
    #[arg(long, value_name = "MACHINE", default_value = "l3:1 core:16")]
    machine: String,
    #[command(flatten)]
    costs: Costs,
    /// A workload of the list below, or the beginning of its name; may be given again
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// On what it runs, as 'corewise-bench' says it: corewise/cpu, corewise/cache_shard, before ...
    #[arg(long, value_name = "NAME", default_value = "corewise")]
    runtime: String,
    /// Threads that queue from outside
    #[arg(long, value_name = "N")]
    producers: Option<u64>,
    /// Items of a run
    #[arg(long, value_name = "N")]
    items: Option<u64>,
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
    /// Tell of so many fields, and of so many pairs of them; of none, places are told as file:line,
    /// which is quicker
    #[arg(long, value_name = "N", default_value_t = 12)]
    fields: usize,
    /// Print one line of JSON for each workload: the benchmark's figures and an item's share of all
    /// that was counted
    #[arg(long)]
    json: bool,
    /// Other numbers of the workload; without --workload the whole run, as 'corewise-bench --run'
    /// takes it
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
        Some(Task::Check { records, costs }) => check::check(records, &costs.costs, &costs.cost),
        Some(Task::Counts { recorded, renew: true }) => counts::renew(recorded),
        Some(Task::Counts { recorded, renew: false }) => counts::compare(recorded),
        None => simulate(&words.what),
    }
}

fn simulate(what: &RunArgs) -> Result<(), String> {
    let (topology, description) = topology(&what.machine)?;
    let machine = machine(&topology)?.described(&description).with_real_time(what.real_time);
    let mut costs = costs::read(&what.costs.costs)?;
    costs::change(&mut costs, &what.costs.cost)?;
    let numbers = [("producers", what.producers), ("items", what.items)];
    let numbers = numbers.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
    let changes: Vec<String> = numbers.chain(what.words.iter().cloned()).collect();
    if what.workload.is_empty() && what.words.is_empty() {
        return Err("no workload: add '--workload storm', or another one that --help lists".into());
    }
    if what.workload.is_empty() {
        return one(what, machine, costs, &what.words);
    }
    if let [workload] = &what.workload[..] {
        let words = workload::named(workload, &what.runtime, machine.cpus(), &changes)?;
        return one(what, machine, costs, &words);
    }
    for (nth, workload) in what.workload.iter().enumerate() {
        if nth > 0 && !what.json {
            println!();
        }
        alone(workload)?;
    }
    Ok(())
}

/// The same with one of its workloads, in a process of its own: what one leaves behind is nothing
/// to the next.
fn alone(workload: &str) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    let mut args = std::env::args_os().skip(1);
    command.args(["--workload", workload]);
    while let Some(arg) = args.next() {
        if arg == "--workload" {
            args.next();
        } else if !arg.to_string_lossy().starts_with("--workload=") {
            command.arg(arg);
        }
    }
    let status = command.status();
    match status.map_err(|error| error.to_string())? {
        status if status.success() => Ok(()),
        _ => Err(format!("the run of '{workload}' failed")),
    }
}

fn one(
    what: &RunArgs,
    machine: Machine,
    costs: corewise_sim::Costs,
    words: &[String],
) -> Result<(), String> {
    let run = workload::read(words)?;
    let neighbours = neighbours(what, machine.cpus())?;
    let began = std::time::Instant::now();
    let outcome = corewise_sim::run(machine, costs, what.seed, move || {
        neighbours.into_iter().for_each(corewise_sim::neighbour);
        run()
    });
    let took = began.elapsed();
    let line = outcome.value.as_ref().map_err(ToString::to_string)?.clone();
    print::print_run(what, words, &line, &outcome, took);
    Ok(())
}

/// As many threads of other programs at most.
const MOST_NEIGHBOURS: usize = 10_000;

/// The CPUs of each thread that others burn.
fn neighbours(what: &RunArgs, cpus: usize) -> Result<Vec<Mask>, String> {
    if what.neighbours > MOST_NEIGHBOURS {
        return Err(format!("--neighbours {}: at most {MOST_NEIGHBOURS}", what.neighbours));
    }
    let mut all = vec![Mask::first(cpus); what.neighbours];
    for cpu in what.burn.iter().flat_map(CpuSet::iter) {
        if cpu.index() >= cpus {
            return Err(format!("there is no CPU {cpu} to burn: the machine has {cpus}"));
        }
        let mut mask = Mask::EMPTY;
        mask.set(cpu.index());
        all.push(mask);
    }
    Ok(all)
}

/// The topology, and the description that the machine's threads find.
fn topology(from: &str) -> Result<(Topology, String), String> {
    let read = match from.split_once(':') {
        Some(("xml", file)) => Topology::from_xml(file),
        Some(("sysfs", dir)) => Topology::from_sysfs(dir),
        _ => {
            let threads = format!("{from} pu:1");
            return match Topology::synthetic(from) {
                Ok(topology) => Ok((topology, from.to_owned())),
                // The language wants the last level to be the hardware threads.
                Err(error) => match Topology::synthetic(&threads) {
                    Ok(topology) => Ok((topology, threads)),
                    Err(_) => Err(error.to_string()),
                },
            };
        }
    };
    read.map(|topology| (topology, from.to_owned())).map_err(|error| error.to_string())
}

/// The places of the CPUs that are online; what isn't known counts as the same.
///
/// # Errors
/// There are more CPUs than the simulator knows.
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
