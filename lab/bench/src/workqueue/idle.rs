//! Rest: the costs of a runtime that has worked and is idle.

use corewise_sync::{thread, time};
use std::time::Duration;

use crate::bench::{Cases, Workload};
use crate::meter::Meter;
use crate::names::Place;
use crate::workqueue::runtime::Spawn;
use crate::workqueue::tiny::{Countdown, Tiny};
use crate::workqueue::{base, before, corewise, own};
use crate::{BenchError, Job, Line};

/// Rest after some work.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("idle"),
    quick: |_, _| true,
    numbers: |job, _, on| {
        base(job, on);
        (job.producers, job.items, job.passes) = (1, 10_000, 1);
        job.rest_ms = on.pick(10_000, 300);
    },
    variants: |_, _| vec![corewise(Place::default(), false), before(false)],
    run: own,
};

/// Time that workers may take to go to sleep.
const SETTLE: Duration = Duration::from_millis(100);

/// Runs the workload.
///
/// # Errors
/// It never fails.
pub(super) fn run<R: Spawn>(job: &Job, runtime: &R, meter: &mut Meter) -> Result<Line, BenchError> {
    let countdown = Countdown::new(job.items);
    for payload in 0..job.items as u64 {
        let tiny = Tiny { countdown, payload };
        runtime.spawn(move || tiny.run());
    }
    countdown.wait();
    runtime.flush();
    thread::sleep(SETTLE);
    meter.pass(1, || {
        let began = time::now();
        thread::sleep(Duration::from_millis(job.rest_ms));
        Ok(time::now() - began)
    })?;
    let mut line = job.line();
    meter.finish_pass(&mut line);
    line.set("threads", meter.new_threads() as f64);
    Ok(line)
}
