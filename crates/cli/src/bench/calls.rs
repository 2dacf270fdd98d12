//! `corewise bench calls`: calls against the floor of a wake-up, and against waiters that hold their
//! core.

use corewise::topology::Machine;
use corewise_bench::calls::case::{Case, Way};
use corewise_bench::calls::job::Job;
use corewise_bench::calls::suite;
use corewise_bench::rounds::Cell;

use super::{Text, effort, is_wanted};
use crate::args;

/// What the tables say around them.
pub(super) const TEXT: Text = Text {
    title: "Cross-CPU calls",
    headlines: "Pair by pair (95 % interval; less is better)",
    note: "Medians, and behind them half the span from the smallest run to the largest, in %. Held: \
           the longest time in 20 ms in which an urgent task was ready and couldn't have its core, \
           of all intervals and CPUs; idle: while nobody calls. Latency: from the call until its \
           answer is there; eventfd: of two bare threads. CPU and switches: of all threads; switches \
           per million calls.",
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

/// What to run.
pub(super) fn cells(machine: &Machine, args: &args::Bench) -> Vec<Vec<Cell<Job>>> {
    let cpus = machine.online().len();
    let wanted = |case| is_wanted(args, case, suite::is_quick(case, cpus));
    suite::cells(machine, effort(args), Way::best(), wanted)
}

/// The names of all cases, of a machine with many CPUs.
pub(crate) fn cases() -> Vec<String> {
    let all = Way::ALL.into_iter().flat_map(|way| Case::all(1 << 12, way));
    let mut names: Vec<String> = all.map(|case| case.to_string()).collect();
    names.dedup();
    names
}
