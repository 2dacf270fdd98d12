//! One run, in this process: Corewise, the floor, or a peer that is Rust.

use std::error::Error;

use async_executor::{Executor, StaticExecutor};
use corewise_bench::BenchError;
use corewise_bench::line::Line;
use corewise_bench::meter::Meter;
use corewise_bench::workqueue::job::Job;
use corewise_bench::workqueue::run::{run as run_on, run_reused};
use corewise_topology::Machine;
use corewise_workqueue::Idle;

use crate::workqueue::peers::crossbeam::Crossbeam;
use crate::workqueue::peers::executor::Smol;
use crate::workqueue::peers::ours::{self, Spawning};
use crate::workqueue::peers::rayon::Rayon;
use crate::workqueue::peers::tokio::Tokio;
use crate::workqueue::peers::{PINNED, Pins};
use crate::{counting, session};

/// Runs the job that these words say.
pub(crate) fn run(words: &[String]) -> Result<Line, Box<dyn Error>> {
    session::one(words, peer)
}

fn peer(job: &Job) -> Result<Option<Line>, BenchError> {
    let machine = Machine::live()?;
    let mut meter = Meter::new(job.count, Some(counting::allocations));
    let meter = &mut meter;
    let pins = Pins::of(job, &machine);
    let name = job.runtime.strip_suffix(PINNED).unwrap_or(&job.runtime);
    let line = match name {
        "corewise-spawn" => {
            let ours = ours::idling(job, &machine, Idle::default())?;
            run_on(job, &machine, &Spawning(ours.handle().clone()), meter)?
        }
        "corewise-sleep" => {
            let ours = ours::idling(job, &machine, Idle::Sleep)?;
            run_on(job, &machine, ours.handle(), meter)?
        }
        "corewise-spin" => {
            let ours = ours::idling(job, &machine, ours::SPINS)?;
            run_on(job, &machine, ours.handle(), meter)?
        }
        "tokio" => run_on(job, &machine, &Tokio::<false>::new(job, pins)?, meter)?,
        "tokio-block-in-place" => run_on(job, &machine, &Tokio::<true>::new(job, pins)?, meter)?,
        "rayon" => run_on(job, &machine, &Rayon::new(job, pins)?, meter)?,
        "async-executor" => {
            let executor = Smol::<&'static Executor<'static>>::new(job, &pins)?;
            run_on(job, &machine, &executor, meter)?
        }
        "async-executor-static" => {
            let executor = Smol::<&'static StaticExecutor>::new(job, &pins)?;
            run_on(job, &machine, &executor, meter)?
        }
        "crossbeam" => run_reused(job, &machine, &Crossbeam::new(job, &pins)?, meter)?,
        _ => return Ok(None),
    };
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Tool;
    use crate::session::Cell;
    use crate::workqueue::catalogue;
    use corewise_bench::process::Job as _;
    use corewise_topology::CpuSet;

    /// Every cell of a full run that is made in this program, small.
    #[test]
    fn every_rust_runtime_runs_a_few_items_of_each_of_its_cases() {
        let online: CpuSet = Machine::live().unwrap().online();
        let cells = catalogue::cells(&Default::default(), &online);
        let rust = |cell: &&Cell<Job>| cell.tool == Tool::Rust && !cell.mimalloc;
        for cell in cells.iter().flatten().filter(rust) {
            let job = Job {
                items: cell.job.items.min(60),
                block_us: cell.job.block_us.min(10),
                rest_ms: 1,
                ..cell.job.clone()
            };
            let line = run(&job.to_words()).unwrap();
            assert_eq!(line.unsupported, None, "{} on {}", job.case, job.runtime);
            assert!(!line.metrics.is_empty(), "{} on {}", job.case, job.runtime);
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let problem = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            run(&words).unwrap_err().to_string()
        };
        assert!(problem(&["case=idle", "runtime=none"]).contains("none"));
        assert!(problem(&["case=idles", "runtime=tokio"]).contains("idles"));
    }
}
