//! `corewise bench shutdown`: webs of devices, against the plain loop and the old design.

use corewise_bench::rounds::Cell;
use corewise_bench::shutdown::case::Case;
use corewise_bench::shutdown::job::Job;
use corewise_bench::shutdown::suite;

use super::{Text, effort, is_wanted};
use crate::args;

/// What the tables say around them.
pub(super) const TEXT: Text = Text {
    title: "Shutdown of devices",
    headlines: "Pair by pair (95 % interval; less is better)",
    note: "Medians, and behind them half the span from the smallest run to the largest, in %. A \
           web is called by its graph, its devices, and how many of them are slow. Path: no \
           shutdown can be quicker. Threads: those that came meanwhile. Switches: in all.",
};

/// A headline in words.
pub(super) fn words(headline: &str) -> &str {
    match headline {
        "makespan_vs_critical_path" => "time over the longest chain of slow devices, worst graph",
        "no_slow_vs_serial" => "time over the plain loop's where nothing is slow, worst graph",
        "azure_vs_serial" => "time over the plain loop's on the published machine, worse log",
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
