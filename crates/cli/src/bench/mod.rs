//! `corewise bench`: measures this machine, and says what follows.
//!
//! Every run is a process of its own: this program, started again with `--run` and the run's words.

mod facts;
mod page;
mod progress;
mod table;

use std::io::Write;
use std::time::Duration;

use corewise::topology::Machine;
use corewise_bench::advice::{Advice, Layout, Series, advise};
use corewise_bench::counting::Counting;
use corewise_bench::paired::Plan;
use corewise_bench::process::Program;
use corewise_bench::record::{Record, to_json};
use corewise_bench::rounds::{self, Cell};
use corewise_bench::stats::PairedRatio;
use corewise_bench::workqueue::job::{Effort, Job};
use corewise_bench::workqueue::run::run_own;
use corewise_bench::workqueue::suite::{self, SHARD_SIZES};

use crate::args;
use crate::exit::Failure;
use crate::screen::{self, TITLE, styled};
use page::Report;
use progress::Progress;

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

/// What a call has measured.
struct Measured {
    machine: Machine,
    series: Vec<Series>,
    headlines: Vec<(&'static str, PairedRatio)>,
    records: Vec<Record>,
    advice: Advice,
}

/// Measures, and prints the tables and the advice.
pub(crate) fn run(args: &args::Bench) -> Result<(), Failure> {
    if !args.run.is_empty() {
        return one(&args.run);
    }
    let report = args.report.as_deref().map(|path| Report::new(path, args.peers.as_deref()));
    let report = report.transpose()?;
    let measured = measure(args)?;
    // First: whoever closes the pipe that reads the tables has their report.
    if let Some(report) = &report {
        report.write("workqueue", &measured)?;
    }
    let mut out = anstream::stdout().lock();
    if args.json {
        out.write_all(to_json(&measured.records).as_bytes())?;
    } else {
        write!(out, "{}", text(&measured, screen::width()))?;
    }
    Ok(out.flush()?)
}

/// One run in this process: prints its line.
fn one(words: &[String]) -> Result<(), Failure> {
    let job = Job::from_words(words).map_err(|error| Failure::new(error.to_string()))?;
    if job.count {
        ALLOCATOR.start();
    }
    let line = run_own(&job, Some(|| ALLOCATOR.count())).map_err(failure)?;
    let line = line.ok_or_else(|| Failure::new(format!("no runtime '{}' here", job.runtime)))?;
    Ok(writeln!(std::io::stdout(), "{}", line.to_json())?)
}

fn measure(args: &args::Bench) -> Result<Measured, Failure> {
    let machine = Machine::live()
        .map_err(|error| Failure::new(format!("cannot read this machine: {error}")))?;
    let this = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program to start it: {error}")))?;
    let program = Program::new(this).argument("bench").argument("--run");
    let groups = cells(&machine, args);
    let rounds = usize::from(args.rounds.unwrap_or(if args.quick { 6 } else { 10 }));
    let budget = args.quick.then_some(QUICK_BUDGET);
    let progress = Progress::new(rounds);
    let series = rounds::run(
        Plan { rounds, seed: SEED },
        budget,
        &groups,
        |job| program.run(job, LIMIT),
        |step| progress.tell(step),
    );
    progress.end();
    let series = series.map_err(|error| Failure::new(error.to_string()))?;
    let headlines = suite::headlines(&series, SEED);
    let records = suite::records(&series, &headlines);
    let layout = Layout::of(machine.topology(), &SHARD_SIZES);
    let advice = advise(&layout, &series, SEED);
    Ok(Measured { machine, series, headlines, records, advice })
}

/// What to run. A workload that is asked for is run in a quick call too.
fn cells(machine: &Machine, args: &args::Bench) -> Vec<Vec<Cell<Job>>> {
    let effort = if args.quick { Effort::Quick } else { Effort::Full };
    suite::cells(machine, effort, |case| match args.workload.as_slice() {
        [] => !args.quick || suite::is_quick(case),
        wanted => wanted.iter().any(|word| suite::matches(word, case)),
    })
}

/// The tables, the headlines and the advice.
fn text(measured: &Measured, width: usize) -> String {
    let cpus = measured.machine.online().len();
    let rounds = measured.series.iter().map(|one| one.values.len()).max().unwrap_or(0);
    let cpus = format!("{cpus} CPU{}", if cpus == 1 { "" } else { "s" });
    let counted = format!("{rounds} round{}", if rounds == 1 { "" } else { "s" });
    let mut text = format!("{}\n", styled(TITLE, format!("Workqueues on {cpus}, {counted}")));
    text.push_str(&table::tables(&measured.series, width));
    text.push_str(&table::headlines(&measured.headlines, width));
    text.push_str(&format!("\n{}\n", styled(TITLE, "Advice")));
    for sentence in measured.advice.sentences() {
        text.push_str(&table::wrapped(sentence, width));
    }
    text
}

fn failure(error: corewise_bench::BenchError) -> Failure {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    Failure::new(text)
}
