//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Run the workloads of the workqueue, of cross-CPU calls, of device shutdown, of fork and join, or
/// of NBD servers, on Corewise and on every peer that can be had here: one process a run, in random
/// order within rounds. Ends with the headlines: ratios of pairs of runs.
#[derive(Debug, Clone, Parser)]
#[command(name = "bench-peers")]
pub(crate) struct Options {
    /// The benchmark
    #[arg(value_parser = ["workqueue", "calls", "shutdown", "fork", "nbd"])]
    pub(crate) bench: String,
    /// A look: what the headlines need, small runs, at most 50 seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Rounds that count; a small one is run before them and dropped
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// These peers only; a name's beginning will do (tokio, go, async-executor, ...)
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// These cases only: a whole name (storm/boxed, mix/50/hint, inside/mimalloc), or the beginning
    /// of several (storm, pingpong/cross, roundtrip)
    #[arg(long = "workload", alias = "workloads", value_name = "A,B", value_delimiter = ',')]
    pub(crate) workloads: Vec<String>,
    /// Print the records as JSON, and no tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the records as JSON into that file
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Seed of the orders, the intervals and the mix's arrivals
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,
}

#[cfg(test)]
pub(crate) fn options(line: &str) -> Options {
    let words = ["bench-peers"].into_iter().chain(line.split_whitespace());
    Options::try_parse_from(words).expect("a command line")
}
