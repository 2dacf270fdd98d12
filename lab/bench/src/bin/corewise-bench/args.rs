//! The command line: one definition that parses, checks and explains every flag.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use corewise_bench::bench::{self, Bench};
use corewise_bench::names;
use corewise_topology::{CpuSet, Topology, TopologyError};

const EXAMPLES: &str = "\
Benchmarks:
  workqueue   throughput and latency of work items at each scope and shard size that differs on this
              machine, and of the old design with one locked list per cache
  calls       how long an urgent task waits for its core while other threads wait for calls,
              compared with the old design, in which a waiting thread holds its core; round trips,
              compared with two threads that exchange eventfd messages; calls to many CPUs
  probe       bring-up of 3 to 10000 devices that compute and wait in their probes, each near its
              node, compared with older designs that place each probe twice or use one CPU per node
  shutdown    shutdown of graphs of up to 50000 devices and of a published machine, compared with a
              plain loop and with the old design that has a worker for each device that blocks
  blockmq     sequential reads that eight threads complete, with a fence in the run path, compared
              with the old lock that sleeps; random reads and writes on null, memory and a file,
              compared with fio; tags; the duration of a quiesce and of a freeze under load. The
              file takes 1 GiB in the folder for temporary files (TMPDIR)

Each run is a process of its own. A round has one run of each variant, in random order. The first
round doesn't count, and each ratio compares runs of the same round. The pages of docs/results
describe each workload. All workloads with all rounds take an hour, half of it for shutdown. Leave the
machine alone meanwhile. As root, calls and blockmq run their threads at real-time priorities.
Without root, calls uses a lock in place of a core.

Examples:
  corewise-bench --quick
  corewise-bench workqueue --quick
  corewise-bench workqueue --rounds 20 --workload storm --workload kernel_test
  corewise-bench calls --quick
  corewise-bench calls --workload roundtrip/hot --workload broadcast
  corewise-bench probe --workload devices/3
  corewise-bench shutdown --workload azure --workload flat/5000
  corewise-bench blockmq --workload seqread
  corewise-bench workqueue --json > bench.json
  corewise-bench machine --out costs.toml

Exit codes: 0 success, 1 failure, 2 wrong usage.";

const MACHINE_EXAMPLES: &str = "\
Each thread is pinned to one CPU and has ordinary priority. A figure is a median; a tenth of the
samples lies below p10 and a tenth above p90. The run takes less than a minute and needs no
privileges. Leave the machine alone meanwhile: the file records other load. docs/machine.md explains
each key, its method and its limits.

Examples:
  corewise-bench machine
  corewise-bench machine --out costs.toml
  corewise-bench machine --quick --cpus 0-7

Exit codes: 0 success, 1 failure, 2 wrong usage.";

/// Benchmark Corewise's libraries on this machine.
#[derive(Debug, Parser)]
#[command(name = "corewise-bench", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) other: Option<Other>,
    /// The benchmarks to run [default: all]
    #[arg(value_parser = benchmark())]
    pub(crate) names: Vec<&'static Bench>,
    /// Print the measurements as one JSON array
    #[arg(long)]
    pub(crate) json: bool,
    /// Shorter runs of fewer workloads, within 50 seconds unless --rounds says how many
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of rounds that count, however long they take [default: 10, for shutdown 3; with
    /// --quick 6, or fewer if 50 seconds are too short]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: Option<u16>,
    /// Run only this workload, such as storm, storm/boxed or held_span; may be repeated
    #[arg(long, value_name = "WORKLOAD", value_parser = workload)]
    pub(crate) workload: Vec<String>,
    /// Do one run, and print its line: the program starts itself so
    #[arg(long, value_name = "WORD", num_args = 1.., hide = true, exclusive = true)]
    pub(crate) run: Vec<String>,
}

/// What the program measures beside its benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Other {
    /// Measure the costs of this machine: cache lines between CPUs, wake-ups, switches, system
    /// calls, the allocator
    #[command(after_help = MACHINE_EXAMPLES)]
    Machine(MachineArgs),
}

/// `corewise-bench machine`.
#[derive(Debug, clap::Args)]
pub(crate) struct MachineArgs {
    /// Write the costs to FILE, not to stdout
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) out: Option<PathBuf>,
    /// Finish in ten seconds: fewer samples
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure only these CPUs, such as 0-3,8 [default: all that this process may use]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) cpus: Option<CpuSet>,
}

fn benchmark() -> impl TypedValueParser<Value = &'static Bench> {
    PossibleValuesParser::new(bench::ALL.map(|bench| bench.name))
        .map(|name| bench::named(&name).expect("it is one of the names"))
}

fn cpus(text: &str) -> Result<CpuSet, String> {
    let cpus: CpuSet = text.parse().map_err(|error: TopologyError| error.to_string())?;
    match cpus.is_empty() {
        true => Err("write a list such as 0-3,8".to_owned()),
        false => Ok(cpus),
    }
}

fn workload(text: &str) -> Result<String, String> {
    // Of a machine with many CPUs, whose threads may have real-time priorities or not.
    let one = Topology::synthetic("core:1 pu:1").map_err(|error| error.to_string())?;
    let on = bench::On::made_up(&one, bench::Effort::Full);
    let on = bench::On { cpus: CpuSet::full(1 << 12), ..on };
    let ons = [on.clone(), bench::On { urgent: true, ..on }];
    let cases = |bench: &'static Bench| ons.iter().flat_map(|on| bench.cases(on));
    let all: Vec<String> = bench::ALL.into_iter().flat_map(cases).collect();
    if all.iter().any(|case| names::matches(text, case)) {
        return Ok(text.to_owned());
    }
    let mut workloads: Vec<&str> = Vec::new();
    for case in &all {
        let workload = case.split('/').next().unwrap_or(case);
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    Err(format!("choose from: {}", workloads.join(", ")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn benchmarks_and_workloads_are_known_or_listed() {
        let given = |name| Args::try_parse_from(["corewise-bench", name]);
        assert_eq!(given("workqueue").unwrap().names[0].name, "workqueue");
        let said = |name| given(name).unwrap_err().to_string();
        assert!(said("workqeue").contains("a similar value exists: 'workqueue'"));
        assert!(said("nbd").contains("[possible values: workqueue, calls"), "{}", said("nbd"));
        assert!(workload("held_span").is_ok() && workload("broadcast/4").is_ok());
        assert!(workload("storm").is_ok() && workload("storm/boxed").is_ok());
        assert!(workload("tokio").unwrap_err().contains("kernel_test, storm, inside"));
    }
}
