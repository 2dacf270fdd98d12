//! `corewise bench blockmq`: a fence against the lock that it replaced, random requests against fio, and how long holds take.

use corewise_bench::blockmq::case::{Case, Class};
use corewise_bench::blockmq::disk::Disk;
use corewise_bench::blockmq::job::Job;
use corewise_bench::blockmq::suite;
use corewise_bench::rounds::Cell;
use corewise_bench::{names, process};

use super::{Text, effort, failure, is_wanted};
use crate::args;
use crate::exit::Failure;

/// What the tables say around them.
pub(super) const TEXT: Text = Text {
    title: "The block layer",
    headlines: "Pair by pair (95 % interval; more is better, where nothing else is said)",
    note: "Medians, and behind them half the span from the smallest run to the largest, in %. A \
           sequential read is called by its completion threads, the nanoseconds that a request costs \
           them, and how they are scheduled: fifo and alone only where the system permits it. Waiting: threads \
           that are in a run of their hardware queue, on average; longest wait: in one such run. \
           Switches: per million reads. Random requests, of 4 KiB, are called by what they go to, how \
           many are in flight for each job, and the jobs; fio has its engines null, mmap and io_uring. \
           Latency of a hold: of the call that holds. Resumed: from its end to the next read that \
           completes.",
};

/// A headline in words.
pub(super) fn words(headline: &str) -> &str {
    match headline {
        "seqread_vs_before" => {
            "sequential reads by eight threads, corewise over a mutex that inherits priorities"
        }
        "seqread_vs_unchecked" => "the same, over a queue that never looks again",
        "file_iops_vs_fio" => {
            "random reads of a file, 32 in flight, corewise over fio with io_uring (more is better)"
        }
        "file_p99_vs_fio" => "the 99th percentile of how long they take, the same (less is better)",
        "overhead_ns_per_request" => "a request to a device that does nothing, there and back",
        "allocations_per_item" => "how often it allocates",
        other => other,
    }
}

/// The file that some cases need, where it is one of these.
pub(super) fn disk(
    args: &args::Bench,
    groups: &[Vec<Cell<impl process::Job>>],
) -> Result<Option<Disk>, Failure> {
    let needs = groups.iter().flatten().any(|cell| names::matches("file", &cell.case));
    needs.then(|| Disk::for_runs(effort(args)).map_err(failure)).transpose()
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
