//! Nothing to do: what a runtime costs that has worked and is at rest.

use corewise_sync::{thread, time};
use std::time::Duration;

use crate::error::BenchError;
use crate::line::Line;
use crate::meter::Meter;
use crate::process::Job as _;
use crate::workqueue::job::Job;
use crate::workqueue::runtime::Spawn;
use crate::workqueue::tiny::{Countdown, Tiny};

/// How long workers may take to go to sleep.
const SETTLE: Duration = Duration::from_millis(100);

/// Runs the workload.
///
/// # Errors
/// None of its own.
pub fn run<R: Spawn>(job: &Job, runtime: &R, meter: &mut Meter) -> Result<Line, BenchError> {
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
    meter.finish_rest(&mut line);
    line.set("threads", meter.new_threads() as f64);
    Ok(line)
}
