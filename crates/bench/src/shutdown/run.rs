//! One run: a web is made and shut down, several times over.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::time;
use corewise_topology::Machine;

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Meter, nanoseconds, percentiles, sleep_exactly, threads};
use crate::process::Job as _;
use crate::shutdown::case::Case;
use crate::shutdown::job::Job;
use crate::shutdown::pass::Pass;
use crate::shutdown::web::Web;
use crate::shutdown::{azure, before, graphs, ours, serial};

/// The web of a job.
pub fn web(job: &Job) -> Web {
    match job.case {
        Case::Graph { shape, devices, slow } => graphs::web(job, shape, devices, slow),
        Case::Azure(log) => azure::web(log),
    }
}

/// Runs a case. For each pass `prepare` makes the devices and whatever shuts them down, threads
/// included, and returns what does it. That is timed until it returns: by then all callbacks have
/// ended, and the devices' objects are dropped. The value that it returns is dropped after that.
///
/// # Errors
/// Those of `prepare` and what it made; or the order wasn't kept.
pub fn run<D, R>(
    job: &Job,
    mut prepare: impl FnMut(&Arc<Pass>) -> Result<D, BenchError>,
) -> Result<Line, BenchError>
where
    D: FnOnce() -> Result<R, BenchError>,
{
    // Threads that are made from now on inherit it.
    sleep_exactly();
    let web = Arc::new(web(job));
    let mut meter = Meter::new(false, None);
    let mut makespans = Vec::with_capacity(job.passes);
    let mut came = 0;
    // Where there are several passes, one more goes through all code before.
    for number in 0..job.passes + usize::from(job.passes > 1) {
        let pass = Arc::new(Pass::new(&web));
        let shut_down = prepare(&pass)?;
        let mut left: Option<R> = None;
        let timed = || -> Result<Duration, BenchError> {
            let there = threads().unwrap_or(0);
            let began = time::now();
            left = Some(shut_down()?);
            let took = time::now() - began;
            came = came.max(threads().unwrap_or(0).saturating_sub(there));
            Ok(took)
        };
        if number == 0 && job.passes > 1 {
            timed()?;
        } else {
            meter.pass(1, || {
                let took = timed()?;
                makespans.push(nanoseconds(took));
                Ok(took)
            })?;
        }
        drop(left);
        pass.check()?;
    }
    let mut line = job.line();
    percentiles(&mut line, "makespan", &mut makespans, &[50.0]);
    let bound = web.bound();
    if !bound.is_zero() {
        line.set("critical_path", nanoseconds(bound) as f64);
    }
    line.set("threads", came as f64);
    meter.finish_pass(&mut line);
    Ok(line)
}

/// Runs a job on `corewise`, on the old design (`before`), or as the plain loop (`serial`). `None`:
/// the runtime is none of these.
///
/// # Errors
/// The workload couldn't be run.
pub fn run_own(job: &Job) -> Result<Option<Line>, BenchError> {
    let machine = &Machine::live()?;
    Ok(Some(match job.runtime.as_str() {
        "corewise" => run(job, |pass| ours::prepare(machine, pass))?,
        "before" => run(job, |pass| before::prepare(machine, pass))?,
        "serial" => run(job, |pass| serial::prepare(machine, pass))?,
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::unit;
    use crate::shutdown::case::Shape;
    use crate::words::Effort;

    /// Every order is checked in the run itself.
    #[test]
    fn every_runtime_shuts_every_shape_down_in_order() {
        let graphs = Shape::ALL.map(|shape| Case::Graph { shape, devices: 150, slow: 6 });
        let quick = Shape::ALL.map(|shape| Case::Graph { shape, devices: 60, slow: 0 });
        for case in graphs.into_iter().chain(quick) {
            for runtime in ["corewise", "before", "serial"] {
                let job = Job::new(case, runtime, Effort::Quick);
                let job = Job { shortest_ms: 1, longest_ms: 4, passes: 2, ..job };
                let line = run_own(&job).unwrap().unwrap();
                assert_eq!((line.case, line.runtime.as_str()), (case.to_string(), runtime));
                assert!(line.metrics.keys().all(|metric| unit(metric).is_some()));
                let bound = line.metrics.get("critical_path").copied().unwrap_or(0.0);
                assert!(line.metrics["makespan_p50"] >= bound, "{case} on {runtime}");
                assert_eq!(bound > 0.0, case.slow() == Some(6));
                assert!(line.metrics.contains_key("threads"));
            }
        }
    }

    #[test]
    fn others_runtimes_are_not_ours() {
        let case = Case::Graph { shape: Shape::Flat, devices: 1, slow: 0 };
        assert_eq!(run_own(&Job::new(case, "tokio", Effort::Quick)).unwrap(), None);
    }
}
