//! `corewise bench calls`: calls against the floor of a wake-up, and against waiters that hold their
//! core.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corewise::topology::Machine;
use corewise_bench::calls::case::{Case, Way};
use corewise_bench::calls::job::Job;
use corewise_bench::calls::suite;
use corewise_bench::calls::torture::{self, Plan};
use corewise_bench::rounds::Cell;

use super::{Text, effort, failure, is_wanted};
use crate::args;
use crate::exit::Failure;

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

/// Tortures, and says what was found: a failure where a check failed.
pub(super) fn torture(args: &args::Bench, duration: Duration) -> Result<(), Failure> {
    if !args.names.is_empty() && args.names != [args::Benchmark::Calls] {
        return Err(Failure::new("only calls are tortured: corewise bench calls --torture"));
    }
    let mut plan = Plan::new(duration);
    plan.seed = args.seed.unwrap_or_else(drawn);
    plan.plug = args.unplug;
    let report = torture::run(&plan).map_err(failure)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let json = serde_json::to_string(&report)
            .map_err(|error| Failure::new(format!("cannot write the report: {error}")))?;
        writeln!(out, "{json}")?;
    } else {
        write!(out, "{report}")?;
    }
    out.flush()?;
    match report.failed() {
        true => Err(Failure::new("the torture found calls that don't keep the rules")
            .help(format!("seed {} makes the same choices", plan.seed))),
        false => Ok(()),
    }
}

/// A seed that differs from call to call.
fn drawn() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |since| u64::from(since.subsec_nanos()))
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
