//! Tiny items from within tasks: a million from one task, and a tree of tasks.

use corewise_sync::time;

use crate::bench::{Cases, Workload};
use crate::meter::{Meter, between, percentiles};
use crate::workqueue::runtime::Spawn;
use crate::workqueue::tiny::{Countdown, Tiny};
use crate::workqueue::{base, own, with_before};
use crate::{BenchError, Job, Line};

/// A million items from one task.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("inside"),
    quick: |_, _| true,
    numbers: |job, _, on| {
        base(job, on);
        job.producers = 1;
    },
    variants: |_, on| with_before(on, true, true),
    run: own,
};

/// A tree of tasks.
pub(super) const FAN_OUT: Workload = Workload {
    cases: Cases::These("fan"),
    quick: |_, _| false,
    numbers: |job, _, on| {
        base(job, on);
        (job.producers, job.items, job.passes) = (1, on.pick(500, 100), 1);
    },
    variants: |_, on| with_before(on, false, false),
    run: own,
};

/// Runs the workload: one task queues all items.
///
/// # Errors
/// It never fails.
pub(super) fn inside<R: Spawn>(
    job: &Job,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
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
    meter.passes(job, pass)?;
    Ok(meter.finish(job.line()))
}

/// Children of the root, and of each of these.
const FAN: usize = 64;
/// Tasks of one tree.
const TREE: usize = 1 + FAN + FAN * FAN;

/// Runs trees of tasks, one after another.
///
/// # Errors
/// It never fails.
pub(super) fn fan<R: Spawn>(job: &Job, runtime: &R, meter: &mut Meter) -> Result<Line, BenchError> {
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
    Ok(meter.finish(line))
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
