//! `corewise bench workqueue`: every scope and shard size that differs here, and the old design.

use corewise::topology::Machine;
use corewise_bench::advice::{Advice, Layout, Series, advise};
use corewise_bench::names;
use corewise_bench::record::Record;
use corewise_bench::rounds::Cell;
use corewise_bench::stats::PairedRatio;
use corewise_bench::workqueue::case::Case;
use corewise_bench::workqueue::job::{Effort, Job};
use corewise_bench::workqueue::run::run_own;
use corewise_bench::workqueue::suite::{self, SHARD_SIZES};

use super::{ALLOCATOR, Measured, SEED, Text, failure};
use crate::args;
use crate::exit::Failure;

/// What the tables say around them.
pub(super) const TEXT: Text = Text {
    title: "Workqueues",
    headlines: "Kernel's test, pair by pair (95 % interval; more is better)",
    note: "Medians, and behind them half the span from the smallest run to the largest, in %. CPU \
           and switches: of all threads; switches per million items.",
};

/// A headline in words.
pub(super) fn words(headline: &str) -> &str {
    match headline {
        "cache_shard_vs_before_items" => "items per second, cache_shard over before",
        "cache_shard_vs_before_p50" => "median queueing call, before over cache_shard",
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

/// What to run. A workload that is asked for is run in a quick call too.
pub(super) fn cells(machine: &Machine, args: &args::Bench) -> Vec<Vec<Cell<Job>>> {
    let effort = if args.quick { Effort::Quick } else { Effort::Full };
    suite::cells(machine, effort, |case| match args.workload.as_slice() {
        [] => !args.quick || suite::is_quick(case),
        wanted => wanted.iter().any(|word| names::matches(word, &case.to_string())),
    })
}

/// What a call has measured, with the headlines and the advice.
pub(super) fn measured(machine: &Machine, series: Vec<Series>) -> Measured {
    let headlines: Vec<(&str, PairedRatio)> = suite::headlines(&series, SEED);
    let records: Vec<Record> = suite::records(&series, &headlines);
    let layout = Layout::of(machine.topology(), &SHARD_SIZES);
    let advice: Advice = advise(&layout, &series, SEED);
    let which = args::Benchmark::Workqueue;
    Measured { which, series, headlines, records, advice: Some(advice) }
}

/// The names of all cases.
pub(crate) fn cases() -> Vec<String> {
    Case::all().iter().map(Case::to_string).collect()
}
