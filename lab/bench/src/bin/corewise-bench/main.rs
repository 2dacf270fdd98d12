//! `corewise-bench` measures this machine, and says what follows:
//! `cargo run --release -p corewise-bench -- workqueue [--quick]`, or `calls`, `probe`, `shutdown`,
//! `blockmq`, `machine`.
//!
//! Every run is a process of its own: this program, started again with `--run` and the run's words.
#![allow(clippy::print_stderr)]

mod args;
mod machine;

use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
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
use corewise_bench::rounds::{self, Cell, Headline, Plan, Series, Step};
use corewise_bench::table::table;
use corewise_topology::Machine;
use indicatif::{ProgressBar, ProgressStyle};

use args::{Args, Other};

// Runs that count allocations do so here; for all else it is the system's allocator, behind a flag
// that never changes.
#[global_allocator]
static ALLOCATOR: Counting = Counting::system();

/// The last round of a quick call begins before; what it takes then fits into 50 s.
const QUICK_BUDGET: Duration = Duration::from_secs(44);
/// What one run may take, before it is taken for dead.
const LIMIT: Duration = Duration::from_secs(120);
/// Of the orders within rounds, and of the intervals.
const SEED: u64 = 1;

/// A result whose error is told to the user.
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

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
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

/// Creates a file that is written after the measurement.
fn create(path: &Path) -> Outcome<File> {
    File::create(path).map_err(|error| format!("cannot write '{}': {error}", path.display()).into())
}

/// A progress bar on stderr. It is seen only where that is a terminal.
fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template(template).expect("a template of this program");
    bar.set_style(style.progress_chars("=> "));
    if !bar.is_hidden() {
        // It is drawn twice a second, since drawing costs the runs CPU time.
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}

/// What a benchmark has measured.
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

/// One run in this process: its line of JSON.
fn one(bench: &'static Bench, words: &[String]) -> Outcome<String> {
    let job = Job::from_words(bench, words)?;
    if job.count {
        ALLOCATOR.start();
    }
    Ok(job.run_own(Some(|| ALLOCATOR.count()))?.to_json())
}

/// How thorough the runs are.
fn effort(is_quick: bool) -> Effort {
    if is_quick { Effort::Quick } else { Effort::Full }
}

/// Whether a case is to be run. A workload that is asked for is run in a quick call too.
fn is_wanted(args: &Args, case: &str, is_quick: bool) -> bool {
    match args.workload.as_slice() {
        [] => !args.quick || is_quick,
        wanted => wanted.iter().any(|word| names::matches(word, case)),
    }
}

/// Runs the benchmarks that were asked for, those that have the workloads that were asked for.
fn measure(machine: &Machine, args: &Args) -> Outcome<Vec<Measured>> {
    let on = On::here(machine, effort(args.quick));
    let asked = |which: &&Bench| args.names.is_empty() || args.names.contains(which);
    let cells = |which: &'static Bench| {
        let cells = which.cells(&on, |case, is_quick| is_wanted(args, case, is_quick));
        (!cells.is_empty()).then_some((which, cells))
    };
    let plans: Vec<_> = bench::ALL.into_iter().filter(asked).filter_map(cells).collect();
    if plans.is_empty() {
        let asked = args.workload.join(", ");
        return Err(format!(
            "the benchmark has no such workload: {asked}; leave out the benchmark's name: the \
             workload's name is enough"
        )
        .into());
    }
    // They share the time. A number of rounds that was asked for is kept, also on a machine that
    // has much else to do.
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

/// All rounds of the cells, or as many as the budget has room for.
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
        // One of them sleeps for minutes.
        (false, "shutdown") => 3,
        (false, _) => 10,
    }));
    let bar = bar("{prefix:>12} [{bar:24}] {elapsed}, about {eta} to go  {wide_msg}");
    let series = rounds::run(
        Plan { rounds, seed: SEED },
        budget,
        groups,
        |_, job, _| program.run(job, LIMIT),
        |step| show_progress(&bar, step, rounds),
    );
    bar.finish_and_clear();
    Ok(series?)
}

/// Shows a run that begins.
fn show_progress(bar: &ProgressBar, step: Step<'_>, rounds: usize) {
    bar.set_length(step.all as u64);
    bar.set_position(step.done as u64);
    bar.set_prefix(match step.round {
        0 => "warm-up".to_owned(),
        round if round > rounds => "allocations".to_owned(),
        round => format!("round {round}/{rounds}"),
    });
    bar.set_message(format!("{} {}", step.case, step.variant));
}

/// The tables, a workload each, and the headlines.
fn text(measured: &Measured) -> String {
    let records = measured.records();
    let workload = |record: &Record| CaseName::of(&record.case).workload;
    // A place tells apart the rows of Corewise's own variants.
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

#[cfg(test)]
mod tests {
    use std::io;

    use corewise_bench::BenchError;

    use super::*;

    #[test]
    fn the_cause_of_an_error_is_told_once() {
        let error = BenchError::Unusable { what: "file", source: io::Error::other("no disk") };
        assert_eq!(with_causes(&error), "the workload's file can't be had: no disk");
    }
}
