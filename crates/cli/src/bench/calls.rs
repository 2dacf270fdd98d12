//! `corewise bench calls`: calls against the floor of a wake-up, and against waiters that hold their
//! core.

use corewise::topology::Machine;
use corewise_bench::advice::Series;
use corewise_bench::calls::case::{Case, Way};
use corewise_bench::calls::job::{Effort, Job};
use corewise_bench::calls::run::run_own;
use corewise_bench::calls::suite;
use corewise_bench::names;
use corewise_bench::rounds::Cell;

use super::{ALLOCATOR, Measured, SEED, Text, failure};
use crate::args;
use crate::exit::Failure;

/// What the tables say around them.
pub(super) const TEXT: Text = Text {
    title: "Cross-CPU calls",
    headlines: "Pair by pair (95 % interval; less is better)",
    note: "Medians, and behind them half the span from the smallest run to the largest, in %. Held: \
           the longest time in 25 ms in which an urgent task was ready and couldn't have its core, \
           of all intervals and CPUs; idle: while nobody calls. Latency: from the call until its \
           answer is there; eventfd: of two bare threads.",
};

/// A headline in words.
pub(super) fn words(headline: &str) -> &str {
    match headline {
        "held_span_p99_vs_before" => "longest waits of urgent tasks (p99), corewise over before",
        "roundtrip_p50_vs_eventfd" => {
            "median call with its answer over an eventfd ping, hot or cold, the worse of both"
        }
        other => other,
    }
}

/// One run in this process: its line of JSON.
pub(super) fn one(words: &[String]) -> Result<String, Failure> {
    let job = Job::from_words(words).map_err(|error| Failure::new(error.to_string()))?;
    if job.count {
        ALLOCATOR.start();
    }
    let line = run_own(&job, Some(|| ALLOCATOR.count())).map_err(failure)?;
    let line = line.ok_or_else(|| Failure::new(format!("no runtime '{}' here", job.runtime)))?;
    Ok(line.to_json())
}

/// What to run.
pub(super) fn cells(machine: &Machine, args: &args::Bench) -> Vec<Vec<Cell<Job>>> {
    let effort = if args.quick { Effort::Quick } else { Effort::Full };
    suite::cells(machine, effort, Way::best(), |case| match args.workload.as_slice() {
        [] => true,
        wanted => wanted.iter().any(|word| names::matches(word, &case.to_string())),
    })
}

/// What a call has measured, with the headlines.
pub(super) fn measured(series: Vec<Series>) -> Measured {
    let headlines = suite::headlines(&series, SEED);
    let records = suite::records(&series, &headlines);
    Measured { which: args::Benchmark::Calls, series, headlines, records, advice: None }
}

/// The names of all cases, of a machine with many CPUs.
pub(crate) fn cases() -> Vec<String> {
    let all = Way::ALL.into_iter().flat_map(|way| Case::all(1 << 12, way));
    let mut names: Vec<String> = all.map(|case| case.to_string()).collect();
    names.dedup();
    names
}
