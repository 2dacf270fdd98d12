//! Tiny items from within a task: a million from one, and a tree of them.

use corewise_sync::time;

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::{Meter, between, percentiles};
use crate::process::Job as _;
use crate::workqueue::job::Job;
use crate::workqueue::runtime::Spawn;
use crate::workqueue::tiny::{Countdown, Tiny};

/// One task queues all items.
///
/// # Errors
/// None of its own.
pub fn inside<R: Spawn>(job: &Job, runtime: &R, meter: &mut Meter) -> Result<Line, BenchError> {
    let pass = |items: usize| {
        let countdown = Countdown::new(items);
        let began = time::now();
        let own = runtime.clone();
        runtime.spawn(move || {
            for payload in 0..items as u64 {
                let tiny = Tiny { countdown, payload };
                own.spawn_inside(move || tiny.run());
            }
        });
        countdown.wait();
        let took = time::now() - began;
        runtime.flush();
        Ok(took)
    };
    pass(job.items.div_ceil(10))?;
    for _ in 0..job.passes {
        meter.pass(job.items, || pass(job.items))?;
    }
    let mut line = job.line();
    meter.finish(&mut line);
    Ok(line)
}

/// Children of the root, and of each of these.
const FAN: usize = 64;
/// Tasks of one tree.
const TREE: usize = 1 + FAN + FAN * FAN;

/// Trees of tasks, one after another.
///
/// # Errors
/// None of its own.
pub fn fan<R: Spawn>(job: &Job, runtime: &R, meter: &mut Meter) -> Result<Line, BenchError> {
    let mut makespans = Vec::with_capacity(job.items);
    let mut trees = |count: usize| {
        makespans.clear();
        let began = time::now();
        let mut before = began;
        for _ in 0..count {
            tree(runtime);
            let now = time::now();
            makespans.push(between(before, now));
            before = now;
        }
        Ok(time::now() - began)
    };
    trees(job.items.div_ceil(10))?;
    for _ in 0..job.passes {
        meter.pass(job.items * TREE, || trees(job.items))?;
    }
    let mut line = job.line();
    percentiles(&mut line, "makespan", &mut makespans, &[50.0, 90.0, 99.0]);
    meter.finish(&mut line);
    Ok(line)
}

fn tree<R: Spawn>(runtime: &R) {
    let countdown = Countdown::new(TREE);
    let own = runtime.clone();
    runtime.spawn(move || {
        for _ in 0..FAN {
            let child = own.clone();
            own.spawn_inside(move || {
                for payload in 0..FAN as u64 {
                    let tiny = Tiny { countdown, payload };
                    child.spawn_inside(move || tiny.run());
                }
                countdown.count();
            });
        }
        countdown.count();
    });
    countdown.wait();
    runtime.flush();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Effort;
    use crate::workqueue::case::Case;
    use crate::workqueue::inline::Inline;
    use corewise_topology::CpuSet;

    #[test]
    fn a_pass_is_one_task_that_queues_all_or_a_tree_of_4161() {
        let job = Job {
            items: 20,
            passes: 1,
            ..Job::new(Case::Inside, "x", &CpuSet::full(1), Effort::Quick)
        };
        let runtime = Inline::default();
        inside(&job, &runtime, &mut Meter::new(job.count, None)).unwrap();
        assert_eq!(runtime.inside(), 2 + 20);
        assert_eq!(TREE, 4161);
        let (job, runtime) = (Job { case: Case::Fan, items: 2, ..job }, Inline::default());
        let line = fan(&job, &runtime, &mut Meter::new(job.count, None)).unwrap();
        assert_eq!(runtime.inside(), 3 * 4160);
        assert!(line.metrics["makespan_p50"] > 0.0);
    }
}
