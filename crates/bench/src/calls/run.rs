//! One run: the workload of its case on a runtime that was built for it.
//!
//! A program's way: parse the words, make a [`Meter`], give the workload what makes the runtime,
//! print the line. [`run_own`] does that for the runtimes of this crate.

use corewise_sync::sys;
use corewise_topology::Machine;

use crate::calls::case::Case;
use crate::calls::eventfd::Eventfd;
use crate::calls::held::{self, Waiter};
use crate::calls::job::Job;
use crate::calls::load;
use crate::calls::reads;
use crate::calls::roundtrip::{self, called};
use crate::calls::variants::{Awaited, Many, One};
use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Allocations, Meter};
use crate::process::{Job as _, NOT_SIMULATED};

/// Runs a job on `corewise`, on the old design (`before`), or on a floor (`eventfd`, or `idle` for
/// the held spans). `None`: the runtime is none of these.
///
/// # Errors
/// The workload couldn't be run.
pub fn run_own(job: &Job, allocations: Option<Allocations>) -> Result<Option<Line>, BenchError> {
    if job.count && allocations.is_none() {
        return Ok(Some(job.cannot("this program counts no allocations")));
    }
    let machine = &Machine::live()?;
    let meter = &mut Meter::new(job.count, allocations);
    let line = match (job.runtime.as_str(), job.case) {
        ("arc_swap" | "rwlock", Case::Reads) if !sys::KERNEL_THREADS => job.cannot(NOT_SIMULATED),
        (_, Case::Reads) => match reads::run(job, machine)? {
            Some(line) => line,
            None => job.cannot("it has no such value"),
        },
        ("arc_swap" | "rwlock", _) => job.cannot("it is for reads"),
        ("eventfd", _) if !sys::KERNEL_THREADS => job.cannot(NOT_SIMULATED),
        ("idle", Case::HeldSpan(way)) => held::run(job, machine, way, Waiter::Nobody)?,
        ("before", Case::HeldSpan(way)) => held::run(job, machine, way, Waiter::HoldsItsCore)?,
        ("corewise", Case::HeldSpan(way)) => held::run(job, machine, way, Waiter::GivesItBack)?,
        ("corewise", Case::RoundTrip(_)) => {
            roundtrip::run(job, machine, meter, || One::new(machine, job.server_cpu))?
        }
        ("corewise-future", Case::RoundTrip(_)) => roundtrip::run(job, machine, meter, || {
            Ok(Awaited::new(One::new(machine, job.server_cpu)?))
        })?,
        ("corewise-future", _) => job.cannot("only round trips are awaited"),
        ("corewise", Case::Load(load)) => load::run(job, machine, load, meter)?,
        ("corewise", Case::Broadcast { cpus, synthetic }) => {
            let machine = match synthetic {
                true => &Machine::synthetic(&format!("core:{cpus} pu:1"))?,
                false => machine,
            };
            let cpus = called(job, machine)?;
            roundtrip::run(job, machine, meter, || Many::new(machine, cpus))?
        }
        ("eventfd", Case::RoundTrip(_)) => {
            roundtrip::run(job, machine, meter, || Eventfd::new(machine, job.server_cpu))?
        }
        ("eventfd", _) => job.cannot("it wakes one"),
        ("before" | "idle", _) => job.cannot("it is for held spans"),
        _ => return Ok(None),
    };
    Ok(Some(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::case::Way;
    use crate::line::unit;
    use crate::words::Effort;

    /// Every case of every runtime of ours, small: what it reports has names and values.
    #[test]
    fn every_runtime_runs_every_case_or_says_why_not() {
        let online = Machine::live().unwrap().online();
        for runtime in ["corewise", "corewise-future", "eventfd", "before", "idle"] {
            for case in Case::all(online.len(), Way::best()) {
                let job = Job::new(case, runtime, &online, Effort::Quick);
                let job = Job { items: 20, gap_us: job.gap_us.min(1), length_ms: 150, ..job };
                let job = Job { items: if case == Case::Reads { 2_000 } else { 20 }, ..job };
                let line = run_own(&job, None).unwrap().unwrap();
                assert_eq!((line.case, line.runtime), (case.to_string(), runtime.to_owned()));
                assert!(line.metrics.keys().all(|metric| unit(metric).is_some()));
                assert_eq!(line.unsupported.is_none(), !line.metrics.is_empty());
                let able = match runtime {
                    _ if case == Case::Reads => runtime == "corewise",
                    "corewise" => true,
                    "eventfd" | "corewise-future" => case.workload() == "roundtrip",
                    _ => case.workload() == "held_span",
                };
                assert_eq!(line.unsupported.is_none(), able, "{case} on {runtime}");
            }
        }
    }

    #[test]
    fn others_runtimes_are_not_ours() {
        let online = Machine::live().unwrap().online();
        let job = |runtime| {
            Job::new(Case::Broadcast { cpus: 1, synthetic: false }, runtime, &online, Effort::Quick)
        };
        assert_eq!(run_own(&job("tokio"), None).unwrap(), None);
        assert!(run_own(&job("corewise").counting(), None).unwrap().unwrap().unsupported.is_some());
    }
}
