//! `corewise bench workqueue`: every scope and shard size that differs here, and the old design.

use corewise::topology::Machine;
use corewise_bench::advice::{Advice, Layout, Series, advise};
use corewise_bench::rounds::Cell;
use corewise_bench::workqueue::case::Case;
use corewise_bench::workqueue::job::Job;
use corewise_bench::workqueue::suite::{self, SHARD_SIZES};

use super::{SEED, Text, effort, is_wanted};
use crate::args;

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

/// What to run.
pub(super) fn cells(machine: &Machine, args: &args::Bench) -> Vec<Vec<Cell<Job>>> {
    suite::cells(machine, effort(args), |case| is_wanted(args, case, suite::is_quick(case)))
}

/// What a call's values say.
pub(super) fn advice(machine: &Machine, series: &[Series]) -> Advice {
    advise(&Layout::of(machine.topology(), &SHARD_SIZES), series, SEED)
}

/// The names of all cases.
pub(crate) fn cases() -> Vec<String> {
    Case::all().iter().map(Case::to_string).collect()
}
