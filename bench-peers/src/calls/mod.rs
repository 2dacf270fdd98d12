//! The workloads for cross-CPU calls on everybody.

mod catalogue;
mod headlines;
mod peers;
pub(crate) mod run;

use std::error::Error;

use corewise_bench::calls::job::Job;
use corewise_topology::Machine;

use crate::arguments::Options;
use crate::programs::Tool;
use crate::results::{Headline, Results};
use crate::session::{self, Idle, Workload};
use catalogue::RUNTIMES;

/// Runs what was asked for, and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let online = Machine::live()?.online();
    session::run(options, catalogue::cells(options, &online), online.len())
}

/// A part of a run's calls is enough for the round that is dropped.
const DROPPED_PART: usize = 10;

impl Workload for Job {
    const NAME: &'static str = "calls";
    const COMMAND: &'static str = "call";

    fn small(mut self) -> Job {
        self.items = (self.items / DROPPED_PART).max(1);
        self
    }

    fn rests(&self) -> bool {
        false
    }

    fn counts(&self, tool: Tool) -> bool {
        tool == Tool::Rust
    }

    fn columns(_: &str) -> &'static [&'static str] {
        &["latency_p50", "latency_p99", "latency_p999", "cpu_per_item", "allocations_per_item"]
    }

    fn runtimes() -> impl Iterator<Item = (&'static str, Idle)> {
        RUNTIMES.iter().map(|runtime| (runtime.name, runtime.idle))
    }

    fn headlines(results: &Results) -> Vec<Headline> {
        headlines::headlines(results)
    }
}
