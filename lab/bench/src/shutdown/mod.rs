//! Workloads for shutting devices down, and their runtimes.
//!
//! 1. [`web`](mod@web) has devices, their needs and callbacks, `graphs` made-up webs, and `azure`
//!    those of two published logs.
//! 2. [`pass`] is one shutdown of a web, with a check of its order.
//! 3. `serial` is the plain loop, over the objects that Corewise's bring-up made, `before` the old
//!    design, `ours` Corewise.
//!
//! # The words
//!
//! All numbers are whole and without a sign. A word that a case doesn't need is ignored.
//!
//! | word | means |
//! |---|---|
//! | `case` | the case |
//! | `runtime` | the runtime, one of those that the program knows |
//! | `passes` | measured shutdowns, each of new devices and threads |
//! | `quick_steps` | rounds of arithmetic in a quick callback, a nanosecond each or less |
//! | `shortest_ms` | the shortest slow callback, in milliseconds |
//! | `longest_ms` | the longest slow callback, in milliseconds |
//! | `seed` | seed of the choice of slow devices, and of their times |
//!
//! # The cases
//!
//! **`GRAPH/DEVICES/SLOW`** has DEVICES devices. Each tenth of them has a callback that is quick
//! (about 10 µs of arithmetic). SLOW of them have one that sleeps, from `shortest_ms` to
//! `longest_ms` in equal ratios. All have opted in to asynchronous shutdown. GRAPH is
//!
//! * `flat`: no device needs another;
//! * `deep`: four chains, each device needs the one before it;
//! * `wide`: one root that all others need;
//! * `stacked`: five layers, each device needs two of the layer below;
//! * `inverted`: as `stacked`, and registered the wrong way round, consumers first.
//!
//! **`azure/serial`, `azure/async`** have the 492 devices of a published virtual machine. Each
//! callback is as long as its log says; see `azure`.
//!
//! # The metrics
//!
//! - `makespan_p50`: the time from the call until all is shut down and the devices' objects are
//!   dropped; the middle one of the passes.
//! - `critical_path`: the time below which no shutdown can be; see [`Web::bound`](web::Web::bound).
//!   It is left out if nothing sleeps.
//! - `threads`: the threads that came meanwhile, the most of any pass.
//! - `voluntary_switches`, `cpu_seconds`: those of a pass, on average.

mod azure;
mod before;
mod graphs;
mod ours;
pub mod pass;
mod serial;
pub mod web;

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::time;
use corewise_topology::Machine;

use crate::bench::{Bench, Cases, Effort, Pairs, Ratio, Workload, count, variants, worst};
use crate::meter::{Meter, nanoseconds, percentiles, sleep_exactly, threads};
use crate::{BenchError, Job, Line};
use pass::Pass;
use web::Web;

/// `corewise-bench shutdown`. The headlines are ratios, of which less is better. The first is the
/// time to the lower bound, on the web with slow devices with the worst ratio. The second is the
/// time to the plain loop's without slow devices, on the worst web. The third is the ratio to the
/// plain loop for the published machine, for the worse of its two logs.
pub static BENCH: Bench = Bench {
    name: "shutdown",
    words: "passes quick_steps shortest_ms longest_ms seed",
    workloads: &[WEBS],
    counting: |_| (),
    headlines: |pairs| {
        let worst_of = |takes: fn(&str) -> bool, against: fn(&Pairs<'_>, &str) -> Ratio| {
            worst(
                all_webs()
                    .iter()
                    .filter(|case| takes(case))
                    .filter_map(|case| against(pairs, case)),
            )
        };
        vec![
            (
                "makespan_vs_critical_path",
                worst_of(|case| slow(case).is_some_and(|n| n > 0), to_bound),
            ),
            ("no_slow_vs_serial", worst_of(|case| slow(case) == Some(0), to_serial)),
            ("azure_vs_serial", worst_of(|case| slow(case).is_none(), to_serial)),
        ]
    },
};

fn to_bound(pairs: &Pairs<'_>, case: &str) -> Ratio {
    let of = |metric| pairs.values(case, "corewise", metric);
    pairs.ratio(of("makespan_p50"), of("critical_path"))
}

fn to_serial(pairs: &Pairs<'_>, case: &str) -> Ratio {
    pairs.over(case, "makespan_p50", "serial")
}

/// Shapes of dependencies. Devices of the last one are registered in the reverse order.
const SHAPES: [&str; 5] = ["flat", "deep", "wide", "stacked", "inverted"];
/// Numbers of devices.
const DEVICES: [usize; 3] = [500, 5_000, 50_000];
/// Numbers of slow devices.
const SLOW: [usize; 2] = [2, 24];
/// Devices of the webs with which a quick call runs every graph.
const LOOK: &str = "5000";
/// Steps of a quick callback, about 10 µs.
const QUICK_STEPS: u32 = 16_000;

const WEBS: Workload = Workload {
    cases: Cases::Fit(
        |parts| match parts {
            ["azure", log] => matches!(*log, "serial" | "async"),
            [shape, devices, slow] => {
                let number = |part: &str| part.parse::<u32>().ok();
                let fewer = number(slow).is_some_and(|slow| Some(slow) <= number(devices));
                SHAPES.contains(shape) && count(devices) && fewer
            }
            _ => false,
        },
        |_| all_webs(),
    ),
    quick: |parts, _| match parts {
        [shape, devices, "0"] => *devices == LOOK || *shape == "flat",
        [shape, devices, "2"] => *devices == "500" && *shape == "flat",
        [_, devices, _] => *devices == LOOK,
        _ => true,
    },
    numbers: |job, parts, on| {
        if let [_, _, "0"] = parts {
            // The passes take some tenths of a second.
            job.passes = (on.pick(100_000, 25_000) / job.part(1) as usize).clamp(2, 50);
        }
        job.quick_steps = QUICK_STEPS;
        (job.shortest_ms, job.longest_ms) = on.pick((100, 5_000), (10, 500));
    },
    // The sum of all sleeps is known, is the same for any graph, and takes long. So with slow
    // devices the plain loop is run on the smallest flat webs only, and not in a quick call. A
    // quick call runs the old design on two webs only.
    variants: |parts, on| {
        let full = on.effort == Effort::Full;
        let names: &[_] = match parts {
            ["azure", _] | [_, _, "0"] => &["corewise", "before", "serial"],
            ["flat", "500", _] if full => &["corewise", "before", "serial"],
            [shape, ..] if full || matches!(*shape, "flat" | "deep") => &["corewise", "before"],
            _ => &["corewise"],
        };
        variants(names, false)
    },
    run: |job, meter| {
        let machine = &Machine::live()?;
        match job.runtime.as_str() {
            "corewise" => run(job, meter, |pass| ours::prepare(machine, pass)),
            "before" => run(job, meter, |pass| before::prepare(machine, pass)),
            "serial" => run(job, meter, |pass| serial::prepare(machine, pass)),
            _ => job.unknown(),
        }
    },
};

/// Returns all webs, those without slow devices first, the replays next.
fn all_webs() -> Vec<String> {
    let with = |slow: usize| {
        let of = move |shape| DEVICES.map(|devices| format!("{shape}/{devices}/{slow}"));
        SHAPES.into_iter().flat_map(of)
    };
    let azure = ["azure/serial", "azure/async"].map(str::to_owned);
    with(0).chain(azure).chain(SLOW.into_iter().flat_map(with)).collect()
}

/// Returns the number of slow devices of a case, or `None` for a replay.
pub fn slow(case: &str) -> Option<usize> {
    case.split('/').nth(2)?.parse().ok()
}

/// Returns the web of a job.
fn web(job: &Job) -> Web {
    match job.parts()[..] {
        [shape, _, _] => graphs::web(job, shape, job.part(1) as usize, job.part(2) as usize),
        _ => azure::web(job.parts()[1]),
    }
}

/// Runs a case. For each pass `prepare` makes the devices and the threads that shut them down. It
/// returns the function that does the shutdown. That function is timed until it returns: by then
/// all callbacks have ended, and the devices' objects are dropped. Its return value is dropped
/// after that.
///
/// # Errors
/// `prepare` or its function failed, or the order wasn't kept.
pub fn run<D, R>(
    job: &Job,
    meter: &mut Meter,
    mut prepare: impl FnMut(&Arc<Pass>) -> Result<D, BenchError>,
) -> Result<Line, BenchError>
where
    D: FnOnce() -> Result<R, BenchError>,
{
    // New threads inherit it.
    sleep_exactly();
    let web = Arc::new(web(job));
    let mut makespans = Vec::with_capacity(job.passes);
    let mut came = 0;
    // If there are several passes, one more runs all code before them.
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
