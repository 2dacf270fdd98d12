//! `corewise bench blockmq`: a fence against the lock that it replaced, and how long holds take.

use corewise_bench::blockmq::case::{Case, Class};
use corewise_bench::blockmq::job::Job;
use corewise_bench::blockmq::suite;
use corewise_bench::rounds::Cell;

use super::{Text, effort, is_wanted};
use crate::args;

/// What the tables say around them.
pub(super) const TEXT: Text = Text {
    title: "The block layer",
    headlines: "Pair by pair (95 % interval; more is better)",
    note: "Medians, and behind them half the span from the smallest run to the largest, in %. A \
           sequential read is called by its completion threads, the nanoseconds that a request costs \
           them, and how they are scheduled: urgent and fifo only where the system permits it. Waiting: threads \
           that are in a run of their hardware queue, on average; longest wait: in one such run. \
           Switches: per million reads. Resumed: from the end of a hold to the next read that \
           completes.",
};

/// A headline in words.
pub(super) fn words(headline: &str) -> &str {
    match headline {
        "seqread_vs_before" => {
            "sequential reads by eight threads, corewise over a mutex that inherits priorities"
        }
        "seqread_vs_unchecked" => "the same, over a queue that never looks again",
        other => other,
    }
}

/// What to run.
pub(super) fn cells(args: &args::Bench) -> Vec<Vec<Cell<Job>>> {
    let best = Class::best();
    suite::cells(effort(args), best, |case| is_wanted(args, case, suite::is_quick(case, best)))
}

/// The names of all cases.
pub(crate) fn cases() -> Vec<String> {
    let all = Class::ALL.into_iter().flat_map(Case::all);
    all.map(|case| case.to_string()).collect()
}
