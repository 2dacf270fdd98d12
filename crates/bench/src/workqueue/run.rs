//! One run: the workload of its case on a runtime that was built for it.
//!
//! A program's way: parse the words, make a [`Meter`], build the runtime as the job says, give it to
//! [`run`] (or [`run_reused`] where the job [reuses](Job::reuses) items), print the line.
//! [`run_own`] does that for the runtimes of this crate.

use corewise_topology::Machine;
use corewise_workqueue::Idle;

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Allocations, Meter};
use crate::names::Place;
use crate::process::Job as _;
use crate::workqueue::before::LockedPools;
use crate::workqueue::case::Case;
use crate::workqueue::floor::Futex;
use crate::workqueue::job::Job;
use crate::workqueue::runtime::{Reuse, Signal, Spawn};
use crate::workqueue::variants::Corewise;
use crate::workqueue::{idle, inside, kernel_test, mix, pingpong, storm};

/// Runs a job on a runtime that takes closures and signals. The line says what it can't do.
///
/// # Errors
/// The workload couldn't be run.
pub fn run<R: Signal + Spawn>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    match job.case {
        Case::KernelTest { inline: false } => kernel_test::run(job, machine, runtime, meter),
        Case::KernelTest { inline: true } => Ok(job.cannot("its waiters run nothing themselves")),
        Case::Storm { .. } | Case::Oversubscribed { .. } if job.reuses() => {
            Ok(job.cannot("it has no items that can be queued again"))
        }
        Case::Storm { .. } | Case::Oversubscribed { .. } => storm::boxed(job, runtime, meter),
        Case::Inside => inside::inside(job, runtime, meter),
        Case::Fan => inside::fan(job, runtime, meter),
        Case::PingPong { .. } => pingpong::run(job, machine, runtime, meter),
        Case::Mix { hint: true, .. } if !R::HAS_HINT => {
            Ok(job.cannot("it can't be told that an item blocks"))
        }
        Case::Mix { .. } => mix::run(job, runtime, meter),
        Case::Idle => idle::run(job, runtime, meter),
    }
}

/// As [`run`], for a runtime that has items which can be queued again, too.
///
/// # Errors
/// The workload couldn't be run.
pub fn run_reused<R: Signal + Spawn + Reuse>(
    job: &Job,
    machine: &Machine,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    match job.reuses() {
        true => storm::reused(job, runtime, meter),
        false => run(job, machine, runtime, meter),
    }
}

/// Runs a job on Corewise (`corewise`, `corewise/SCOPE[:SHARD]`), on the old design (`before`), or
/// on the floor of the ping-pong (`futex`). `None`: the runtime is none of these.
///
/// # Errors
/// The workload couldn't be run.
pub fn run_own(job: &Job, allocations: Option<Allocations>) -> Result<Option<Line>, BenchError> {
    if job.count && allocations.is_none() {
        return Ok(Some(job.cannot("this program counts no allocations")));
    }
    let machine = Machine::live()?;
    let mut meter = Meter::new(job.count, allocations);
    let meter = &mut meter;
    let line = match (job.runtime.split_once('/'), job.runtime.as_str()) {
        (_, "before") => {
            let pools = match job.worker_cpu {
                Some(cpu) => LockedPools::on(&machine, cpu)?,
                None => LockedPools::new(&machine)?,
            };
            run_reused(job, &machine, pools.handle(), meter)?
        }
        (_, "futex") => {
            let futex = Futex::new(&machine, job.worker_cpu)?;
            match job.case {
                Case::PingPong { .. } => pingpong::run(job, &machine, &futex, meter)?,
                _ => job.cannot("it has no queue"),
            }
        }
        (_, "corewise") => run_corewise(job, &machine, Place::default(), meter)?,
        (Some(("corewise", place)), _) => match place.parse() {
            Ok(place) => run_corewise(job, &machine, place, meter)?,
            Err(()) => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(line))
}

fn run_corewise(
    job: &Job,
    machine: &Machine,
    place: Place,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    let runtime = Corewise::new(job, machine, place, Idle::default())?;
    match job.case {
        Case::KernelTest { inline: true } => {
            kernel_test::run_inline(job, machine, runtime.handle(), meter)
        }
        _ => run_reused(job, machine, runtime.handle(), meter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::unit;
    use crate::words::Effort;

    /// Every case of every runtime of ours, small: what it reports has names and values.
    #[test]
    fn every_runtime_runs_every_case_or_says_why_not() {
        let online = Machine::live().unwrap().online();
        for runtime in ["corewise", "corewise/cpu", "before", "futex"] {
            for case in Case::all() {
                let job = Job::new(case, runtime, &online, Effort::Quick);
                let items = job.items.min(100);
                let job = Job { items, rest_ms: 1, block_us: job.block_us.min(10), ..job };
                let line = run_own(&job, None).unwrap().unwrap();
                assert_eq!((line.case, line.runtime), (case.to_string(), runtime.to_owned()));
                assert!(line.metrics.keys().all(|metric| unit(metric).is_some()));
                let ran = line.unsupported.is_none();
                assert_eq!(ran, !line.metrics.is_empty());
                let able = match (runtime, case) {
                    ("futex", case) => case.workload() == "pingpong",
                    ("before", Case::KernelTest { inline }) => !inline,
                    _ => true,
                };
                assert_eq!(ran, able, "{runtime} {case}: {:?}", line.unsupported);
            }
        }
    }

    #[test]
    fn others_runtimes_are_not_ours() {
        let online = Machine::live().unwrap().online();
        for runtime in ["tokio", "corewise/llc", ""] {
            let job = Job::new(Case::Inside, runtime, &online, Effort::Quick);
            assert_eq!(run_own(&job, None).unwrap(), None);
        }
        let job = Job::new(Case::Inside, "corewise", &online, Effort::Quick).counting();
        assert!(run_own(&job, None).unwrap().unwrap().unsupported.is_some());
    }
}
