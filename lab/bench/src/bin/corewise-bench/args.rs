//! The command line: one definition that parses, checks and explains every flag.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use corewise_bench::bench::{self, Bench};

const EXAMPLES: &str = "\
docs/results describes the workloads of each benchmark. Each run is a process of its own. A round
has one run of each variant, in random order. The first round doesn't count, and each ratio compares
runs of the same round. All workloads with all rounds take an hour, half of it for shutdown. Leave
the machine alone meanwhile. As root, calls and blockmq run their threads at real-time priorities.
blockmq needs 1 GiB in the folder for temporary files (TMPDIR).

Examples:
  corewise-bench workqueue --quick
  corewise-bench calls --workload roundtrip/hot --workload broadcast
  corewise-bench workqueue --json > bench.json
  corewise-bench machine > costs.toml

Exit codes: 0 success, 1 failure, 2 wrong usage.";

const MACHINE_EXAMPLES: &str = "\
Each thread is pinned to one CPU and has ordinary priority. A figure is a median; a tenth of the
samples lies below p10 and a tenth above p90. The run takes less than a minute and needs no
privileges. Leave the machine alone meanwhile: the file records other load. lab/machine.md explains
each key, its method and its limits.

Examples:
  corewise-bench machine > costs.toml
  taskset -c 0-7 corewise-bench machine --quick

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
    #[arg(long, value_name = "WORKLOAD")]
    pub(crate) workload: Vec<String>,
    /// Do one run, and print its line: the program starts itself so
    #[arg(long, value_name = "WORD", num_args = 1.., hide = true, exclusive = true)]
    pub(crate) run: Vec<String>,
}

/// Measurements beside the benchmarks.
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
    /// Finish in ten seconds: fewer samples
    #[arg(long)]
    pub(crate) quick: bool,
}

fn benchmark() -> impl TypedValueParser<Value = &'static Bench> {
    PossibleValuesParser::new(bench::ALL.map(|bench| bench.name))
        .map(|name| bench::named(&name).expect("it is one of the names"))
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
    fn benchmarks_are_known_or_listed() {
        let given = |name| Args::try_parse_from(["corewise-bench", name]);
        assert_eq!(given("workqueue").unwrap().names[0].name, "workqueue");
        let said = |name| given(name).unwrap_err().to_string();
        assert!(said("workqeue").contains("a similar value exists: 'workqueue'"));
        assert!(said("nbd").contains("[possible values: workqueue, calls"), "{}", said("nbd"));
    }
}
