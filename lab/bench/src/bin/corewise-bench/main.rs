//! `corewise-bench` runs the benchmarks on this machine:
//! `cargo run --release -p corewise-bench -- workqueue [--quick]`, or `calls`, `probe`, `shutdown`,
//! `blockmq`, `machine`.
//!
//! Each run is a process of its own: this program, started again with `--run` and the run's words.
#![allow(clippy::print_stderr)]

mod args;
mod machine;

use std::error::Error;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use corewise_bench::bench::{self, Bench, Effort, On, Pairs};
use corewise_bench::blockmq::disk::{DISK, Disk};
use corewise_bench::counting::Counting;
use corewise_bench::job::Job;
use corewise_bench::line::unit;
use corewise_bench::names::{self, CaseName, sums_up};
use corewise_bench::process::Program;
use corewise_bench::record::{Record, show, to_json};
use corewise_bench::rounds::{self, Cell, Headline, Plan, Series};
use corewise_bench::table::table;
use corewise_bench::with_causes;
use corewise_topology::Machine;

use args::{Args, Other};

// Runs that count allocations do so here. In all others the flag in front of the system's allocator
// never changes.
#[global_allocator]
static ALLOCATOR: Counting = Counting::system();

/// Latest begin of the last round of a quick call, which then ends within 50 s.
const QUICK_BUDGET: Duration = Duration::from_secs(44);
/// Greatest time of one run. After that, it counts as dead.
const LIMIT: Duration = Duration::from_secs(120);
/// Seed of the orders within rounds and of the intervals.
const SEED: u64 = 1;

/// A result whose error is printed for the user.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Prints to stdout. A reader that leaves early, such as `head`, is no error.
fn print(text: &str) -> Outcome {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write to stdout: {error}").into())
        }
        _ => Ok(()),
    }
}

/// Results of a benchmark.
struct Measured {
    which: &'static Bench,
    series: Vec<Series>,
    headlines: Vec<Headline>,
}

impl Measured {
    fn records(&self) -> Vec<Record> {
        rounds::records(self.which.name, &self.series, &self.headlines)
    }
}

/// Measures, and prints the records or the tables.
fn run(args: &Args) -> Outcome {
    if let Some((which, words)) = args.run.split_first() {
        let which = bench::named(which).ok_or_else(|| format!("no benchmark '{which}' here"))?;
        return print(&format!("{}\n", one(which, words)?));
    }
    if let Some(Other::Machine(args)) = &args.other {
        return machine::run(args);
    }
    let machine = this_machine()?;
    let measured = measure(&machine, args)?;
    if args.json {
        let records: Vec<Record> = measured.iter().flat_map(Measured::records).collect();
        return print(&to_json(&records));
    }
    print(&measured.iter().map(text).collect::<Vec<_>>().join("\n"))
}

fn this_machine() -> Outcome<Machine> {
    Machine::live().map_err(|error| format!("cannot read this machine: {error}").into())
}

/// Does one run in this process, and returns its line of JSON.
fn one(bench: &'static Bench, words: &[String]) -> Outcome<String> {
    let job = Job::from_words(bench, words)?;
    if job.count {
        ALLOCATOR.start();
    }
    Ok(job.run_own(Some(|| ALLOCATOR.count()))?.to_json())
}

/// Returns the effort of the runs.
fn effort(is_quick: bool) -> Effort {
    if is_quick { Effort::Quick } else { Effort::Full }
}

/// Returns true if a case is to be run. A named workload is run in a quick call too.
fn is_wanted(args: &Args, case: &str, is_quick: bool) -> bool {
    match args.workload.as_slice() {
        [] => !args.quick || is_quick,
        wanted => wanted.iter().any(|word| names::matches(word, case)),
    }
}

/// Runs the named benchmarks, those that have the named workloads.
fn measure(machine: &Machine, args: &Args) -> Outcome<Vec<Measured>> {
    let on = On::here(machine, effort(args.quick));
    let asked = |which: &&Bench| args.names.is_empty() || args.names.contains(which);
    let cells = |which: &'static Bench| {
        let cells = which.cells(&on, |case, is_quick| is_wanted(args, case, is_quick));
        (!cells.is_empty()).then_some((which, cells))
    };
    let plans: Vec<_> = bench::ALL.into_iter().filter(asked).filter_map(cells).collect();
    let cells = || plans.iter().flat_map(|(_, groups)| groups.iter().flatten());
    let is_unknown = |word: &&String| !cells().any(|cell| names::matches(word, &cell.case));
    if let Some(asked) = args.workload.iter().find(is_unknown) {
        return Err(format!(
            "the benchmark has no such workload: {asked}; leave out the benchmark's name: the \
             workload's name is enough"
        )
        .into());
    }
    // The benchmarks share the time. An explicit number of rounds is kept, also on a busy machine.
    let parts = u32::try_from(plans.len()).unwrap_or(u32::MAX);
    let budget = (args.quick && args.rounds.is_none()).then_some(QUICK_BUDGET / parts);
    let measured = |(which, groups): (&'static Bench, Vec<Vec<Cell>>)| {
        let series = run_cells(which, args, &groups, budget)?;
        let headlines = (which.headlines)(&Pairs { series: &series, seed: SEED });
        let headlines = headlines.into_iter().filter_map(|(name, of)| Some((name, of?))).collect();
        Ok(Measured { which, series, headlines })
    };
    plans.into_iter().map(measured).collect()
}

/// Runs all rounds of the cells, or as many as fit into the budget.
fn run_cells(
    which: &Bench,
    args: &Args,
    groups: &[Vec<Cell>],
    budget: Option<Duration>,
) -> Outcome<Vec<Series>> {
    let this = std::env::current_exe()
        .map_err(|error| format!("cannot find this program to start it: {error}"))?;
    let mut program = Program::new(this).argument("--run").argument(which.name);
    let needs_disk = groups.iter().flatten().any(|cell| names::matches("file", &cell.case));
    let disk = needs_disk.then(|| Disk::for_runs(effort(args.quick))).transpose()?;
    if let Some(disk) = &disk {
        program.environment.push((DISK.into(), disk.path().into()));
    }
    let rounds = usize::from(args.rounds.unwrap_or(match (args.quick, which.name) {
        (true, _) => 6,
        // A round of shutdown sleeps for minutes.
        (false, "shutdown") => 3,
        (false, _) => 10,
    }));
    let is_seen = std::io::stderr().is_terminal();
    Ok(rounds::run(
        Plan { rounds, seed: SEED },
        budget,
        groups,
        |_, job, _| program.run(job, LIMIT),
        |step| {
            if is_seen {
                eprint!("\r\x1b[K{step}\r");
            }
        },
    )?)
}

/// Returns the tables, a workload each, and the headlines.
fn text(measured: &Measured) -> String {
    let records = measured.records();
    let workload = |record: &Record| CaseName::of(&record.case).workload;
    // The rows of Corewise's own variants differ by their place.
    let label = |record: &Record| match (CaseName::of(&record.case).place, &*record.variant) {
        (Some(place), "corewise") => place.to_string(),
        (Some(place), variant) => format!("{variant} ({place})"),
        (None, variant) => variant.to_owned(),
    };
    let mut text = measured.which.name.to_owned();
    let mut rest: Vec<&Record> = records.iter().filter(|one| !sums_up(&one.case)).collect();
    while let Some(first) = rest.first() {
        let title = workload(first);
        let (here, others) = rest.into_iter().partition::<Vec<_>, _>(|one| workload(one) == title);
        text.push_str(&table(&title, &here, &[], label));
        rest = others;
    }
    for (number, (name, ratio)) in measured.headlines.iter().enumerate() {
        let above = if number == 0 { "\n" } else { "" };
        let unit = unit(name).unwrap_or("ratio");
        let [median, low, high] =
            [ratio.summary.median, ratio.low, ratio.high].map(|value| show(value, unit));
        text.push_str(&format!("{above}{name:<38}{median:>9}  [{low}..{high}]\n"));
    }
    text
}
