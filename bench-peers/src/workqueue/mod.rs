//! The workqueue's workloads on everybody.

pub(crate) mod catalogue;
mod headlines;
mod peers;
pub(crate) mod run;

use std::error::Error;

use corewise_bench::workqueue::case::Case;
use corewise_bench::workqueue::job::Job;
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

/// A part of a run's items is enough for the round that is dropped.
const DROPPED_PART: usize = 10;

impl Workload for Job {
    const NAME: &'static str = "workqueue";
    const COMMAND: &'static str = "run";

    fn small(mut self) -> Job {
        (self.items, self.passes) = ((self.items / DROPPED_PART).max(1), 1);
        self
    }

    fn rests(&self) -> bool {
        self.case == Case::Idle
    }

    fn counts(&self, tool: Tool) -> bool {
        let workload = matches!(self.case, Case::Storm { .. } | Case::Inside);
        workload && matches!(tool, Tool::Rust | Tool::Go)
    }

    fn columns(workload: &str) -> &'static [&'static str] {
        match workload {
            "kernel_test" => &[
                "items_per_second",
                "call_p50",
                "call_p95",
                "latency_p50",
                "latency_p99",
                "cpu_per_item",
            ],
            "fan" => &["makespan_p50", "makespan_p99", "items_per_second", "cpu_per_item"],
            "pingpong" => &["latency_p50", "latency_p99", "latency_p999", "cpu_per_item"],
            "mix" => &["short_p99", "short_p50", "short_p999", "cpu_per_item", "threads"],
            "idle" => &["cpu_seconds", "voluntary_switches", "threads"],
            _ => &[
                "items_per_second",
                "cpu_per_item",
                "voluntary_switches",
                "peak_rss",
                "allocations_per_item",
            ],
        }
    }

    fn runtimes() -> impl Iterator<Item = (&'static str, Idle)> {
        RUNTIMES.iter().map(|runtime| (runtime.name, runtime.idle))
    }

    fn headlines(results: &Results) -> Vec<Headline> {
        headlines::headlines(results)
    }
}
