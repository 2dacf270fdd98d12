//! The shutdown of a web of devices on everybody.

mod catalogue;
mod headlines;
mod peers;
pub(crate) mod run;

use std::error::Error;

use corewise_bench::shutdown::job::Job;
use corewise_topology::Machine;

use crate::arguments::Options;
use crate::programs::Tool;
use crate::results::{Headline, Results};
use crate::session::{self, Idle, Workload};
use catalogue::RUNTIMES;

/// Runs what was asked for, and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let cpus = Machine::live()?.online().len();
    session::run(options, catalogue::cells(options), cpus)
}

/// A part of what sleeps is enough for the round that is dropped.
const DROPPED_PART: u32 = 20;

impl Workload for Job {
    const NAME: &'static str = "shutdown";
    const COMMAND: &'static str = "down";

    fn small(mut self) -> Job {
        self.passes = 1;
        self.shortest_ms = (self.shortest_ms / DROPPED_PART).max(1);
        self.longest_ms = (self.longest_ms / DROPPED_PART).max(1);
        self
    }

    fn rests(&self) -> bool {
        false
    }

    fn counts(&self, _: Tool) -> bool {
        false
    }

    fn columns(_: &str) -> &'static [&'static str] {
        &["makespan_p50", "critical_path", "threads", "voluntary_switches", "cpu_seconds"]
    }

    fn runtimes() -> impl Iterator<Item = (&'static str, Idle)> {
        RUNTIMES.into_iter()
    }

    fn headlines(results: &Results) -> Vec<Headline> {
        headlines::headlines(results)
    }
}
