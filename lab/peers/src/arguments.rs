//! Command line of the program.

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
    /// Small runs of the cases that the headlines need, in at most 50 seconds
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of rounds that count; a small one is run before them and dropped
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Run only these peers, each named by the beginning of its name: tokio, go, async-executor ...
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// Run only these cases: a whole name (storm/boxed, mix/50/hint, inside/mimalloc), or the
    /// beginning of several (storm, pingpong/cross, roundtrip)
    #[arg(long = "workload", value_name = "A,B", value_delimiter = ',')]
    pub(crate) workloads: Vec<String>,
    /// Write the records as JSON into that file
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[cfg(test)]
pub(crate) fn options(line: &str) -> Options {
    let words = ["bench-peers"].into_iter().chain(line.split_whitespace());
    Options::try_parse_from(words).expect("a command line")
}
