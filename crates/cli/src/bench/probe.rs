//! `corewise bench probe`: devices that burn and wait in their probes, placed once, against the old
//! designs that place them twice.

use corewise_bench::probe::case::Case;
use corewise_bench::probe::job::Job;
use corewise_bench::probe::suite;
use corewise_bench::rounds::Cell;

use super::{Text, effort, is_wanted};
use crate::args;

/// What the tables say around them.
pub(super) const TEXT: Text = Text {
    title: "Probes",
    headlines: "Pair by pair (95 % interval; less is better)",
    note: "Medians, and behind them half the span from the smallest run to the largest, in %. Cost: \
           of one device's probe, from its begin to its end. All up: until the last device is; bound: \
           the longest probe, or all CPU time over the node's CPUs. Overhead: all that a device costs \
           whose probe does nothing. Before: each probe on the node's first CPU; nested: placed \
           twice, on any of its CPUs; threads: one a device, what the machine makes of it by itself.",
};

/// A headline in words.
pub(super) fn words(headline: &str) -> &str {
    match headline {
        "mean_cost_vs_before" => "mean cost of three devices' probes, corewise over before",
        "makespan_vs_bound" => "time until all are up over what no design can beat, the worst case",
        other => other,
    }
}

/// What to run.
pub(super) fn cells(args: &args::Bench) -> Vec<Vec<Cell<Job>>> {
    suite::cells(effort(args), |case| is_wanted(args, case, suite::is_quick(case)))
}

/// The names of all cases.
pub(crate) fn cases() -> Vec<String> {
    Case::all().iter().map(Case::to_string).collect()
}
