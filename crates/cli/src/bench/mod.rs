//! `corewise bench`: measures this machine, and says what follows.
//!
//! Every run is a process of its own: this program, started again with `--run` and the run's words.

pub(crate) mod blockmq;
pub(crate) mod calls;
mod facts;
mod machine;
mod page;
pub(crate) mod probe;
mod progress;
pub(crate) mod shutdown;
mod table;
pub(crate) mod workqueue;

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use corewise::topology::Machine;
use corewise_bench::advice::{Advice, Series};
use corewise_bench::blockmq::disk::DISK;
use corewise_bench::counting::Counting;
use corewise_bench::names;
use corewise_bench::paired::Plan;
use corewise_bench::process::{Job, Program};
use corewise_bench::record::{Record, to_json};
use corewise_bench::rounds::{self, Cell, Headline};
use corewise_bench::words::Effort;

use crate::args::{self, Benchmark};
use crate::exit::Failure;
use crate::screen::{self, Bars, TITLE, styled};
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

/// What a benchmark has measured.
struct Measured {
    which: Benchmark,
    series: Vec<Series>,
    headlines: Vec<Headline>,
    advice: Option<Advice>,
}

impl Measured {
    fn records(&self) -> Vec<Record> {
        rounds::records(self.which.name(), &self.series, &self.headlines)
    }
}

/// What a benchmark's tables say around them.
struct Text {
    title: &'static str,
    /// Above the headlines.
    headlines: &'static str,
    /// Below the tables.
    note: &'static str,
}

/// Measures, and prints the tables and the advice.
pub(crate) fn run(args: &args::Bench, bars: &Bars) -> Result<(), Failure> {
    if let Some((which, words)) = args.run.split_first() {
        let line = match which.as_str() {
            "workqueue" => one::<corewise_bench::workqueue::job::Job>(words)?,
            "calls" => one::<corewise_bench::calls::job::Job>(words)?,
            "probe" => one::<corewise_bench::probe::job::Job>(words)?,
            "shutdown" => one::<corewise_bench::shutdown::job::Job>(words)?,
            "blockmq" => one::<corewise_bench::blockmq::job::Job>(words)?,
            other => return Err(Failure::new(format!("no benchmark '{other}' here"))),
        };
        return Ok(writeln!(std::io::stdout(), "{line}")?);
    }
    if let Some(args::BenchOther::Machine(args)) = &args.other {
        return machine::run(args, bars);
    }
    let report = args.report.as_deref().map(|path| Report::new(path, args.peers.as_deref()));
    let report = report.transpose()?;
    let machine = Machine::live()
        .map_err(|error| Failure::new(format!("cannot read this machine: {error}")))?;
    let measured = measure(&machine, args, bars)?;
    // First: a user that closes the pipe of the tables has the report.
    if let Some(report) = &report {
        report.write(&machine, &measured)?;
    }
    let mut out = anstream::stdout().lock();
    if args.json {
        let records: Vec<Record> = measured.iter().flat_map(Measured::records).collect();
        out.write_all(to_json(&records).as_bytes())?;
    } else {
        for (number, one) in measured.iter().enumerate() {
            let above = if number == 0 { "" } else { "\n" };
            write!(out, "{above}{}", text(one, &machine, screen::width()))?;
        }
    }
    Ok(out.flush()?)
}

/// One run in this process: its line of JSON.
fn one<J: Job>(words: &[String]) -> Result<String, Failure> {
    let job = J::from_words(words).map_err(|error| Failure::new(error.to_string()))?;
    if job.is_counting() {
        ALLOCATOR.start();
    }
    let line = job.run_own(Some(|| ALLOCATOR.count())).map_err(failure)?;
    let line = line.ok_or_else(|| Failure::new(format!("no runtime '{}' here", job.runtime())))?;
    Ok(line.to_json())
}

/// How thorough the runs are.
fn effort(args: &args::Bench) -> Effort {
    if args.quick { Effort::Quick } else { Effort::Full }
}

/// Whether a case is to be run. A workload that is asked for is run in a quick call too.
fn is_wanted(args: &args::Bench, case: impl Display, is_quick: bool) -> bool {
    match args.workload.as_slice() {
        [] => !args.quick || is_quick,
        wanted => wanted.iter().any(|word| names::matches(word, &case.to_string())),
    }
}

/// Runs the benchmarks that were asked for, those that have the workloads that were asked for.
fn measure(machine: &Machine, args: &args::Bench, bars: &Bars) -> Result<Vec<Measured>, Failure> {
    let asked = |which: &Benchmark| args.names.is_empty() || args.names.contains(which);
    let plans =
        Benchmark::ALL.into_iter().filter(asked).filter_map(|which| plan(which, machine, args));
    let plans: Vec<Course<'_>> = plans.collect();
    if plans.is_empty() {
        let asked = args.workload.join(", ");
        return Err(Failure::new(format!("the benchmark has no such workload: {asked}"))
            .help("leave its name out: a workload is found by its own"));
    }
    // They share the time.
    let parts = u32::try_from(plans.len()).unwrap_or(u32::MAX);
    let budget = args.quick.then_some(QUICK_BUDGET / parts);
    plans.into_iter().map(|plan| plan(bars, budget)).collect()
}

/// Runs a benchmark in its share of the time.
type Course<'a> = Box<dyn FnOnce(&Bars, Option<Duration>) -> Result<Measured, Failure> + 'a>;

/// What a benchmark is to run, where it has any workload that was asked for.
fn plan<'a>(which: Benchmark, machine: &'a Machine, args: &'a args::Bench) -> Option<Course<'a>> {
    fn of<'a, J: Job + 'a>(
        which: Benchmark,
        args: &'a args::Bench,
        groups: Vec<Vec<Cell<J>>>,
        headlines: fn(&[Series], u64) -> Vec<Headline>,
        advice: impl FnOnce(&[Series]) -> Option<Advice> + 'a,
    ) -> Option<Course<'a>> {
        if groups.is_empty() {
            return None;
        }
        Some(Box::new(move |bars, budget| {
            let series = run_cells(which, args, &groups, bars, budget)?;
            let (headlines, advice) = (headlines(&series, SEED), advice(&series));
            Ok(Measured { which, series, headlines, advice })
        }))
    }
    let none = |_: &[Series]| None;
    match which {
        Benchmark::Workqueue => {
            let cells = workqueue::cells(machine, args);
            let advice = |series: &[Series]| Some(workqueue::advice(machine, series));
            of(which, args, cells, corewise_bench::workqueue::suite::headlines, advice)
        }
        Benchmark::Calls => {
            let cells = calls::cells(machine, args);
            of(which, args, cells, corewise_bench::calls::suite::headlines, none)
        }
        Benchmark::Probe => {
            let cells = probe::cells(args);
            of(which, args, cells, corewise_bench::probe::suite::headlines, none)
        }
        Benchmark::Shutdown => {
            let cells = shutdown::cells(args);
            of(which, args, cells, corewise_bench::shutdown::suite::headlines, none)
        }
        Benchmark::Blockmq => {
            let cells = blockmq::cells(args);
            of(which, args, cells, corewise_bench::blockmq::suite::headlines, none)
        }
    }
}

/// All rounds of the cells; with a budget it is a quick call.
fn run_cells(
    which: Benchmark,
    args: &args::Bench,
    groups: &[Vec<Cell<impl Job>>],
    bars: &Bars,
    budget: Option<Duration>,
) -> Result<Vec<Series>, Failure> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program to start it: {error}")))?;
    let mut program = Program::new(this).argument("bench").argument("--run").argument(which.name());
    let disk = match which {
        Benchmark::Blockmq => blockmq::disk(args, groups)?,
        _ => None,
    };
    if let Some(disk) = &disk {
        program.environment.push((DISK.into(), disk.path().into()));
    }
    let rounds = usize::from(args.rounds.unwrap_or(match (budget, which) {
        (Some(_), _) => 6,
        // One of them sleeps for minutes.
        (None, Benchmark::Shutdown) => 3,
        (None, _) => 10,
    }));
    let progress = Progress::new(bars, rounds);
    let series = rounds::run(
        Plan { rounds, seed: SEED },
        budget,
        groups,
        |job| program.run(job, LIMIT),
        |step| progress.tell(step),
    );
    progress.end();
    series.map_err(|error| Failure::new(error.to_string()))
}

/// The tables, the headlines and the advice.
fn text(measured: &Measured, machine: &Machine, width: usize) -> String {
    let cpus = machine.online().len();
    let rounds = measured.series.iter().map(|one| one.values.len()).max().unwrap_or(0);
    let cpus = format!("{cpus} CPU{}", if cpus == 1 { "" } else { "s" });
    let counted = format!("{rounds} round{}", if rounds == 1 { "" } else { "s" });
    let (words, said): (fn(&str) -> &str, Text) = match measured.which {
        Benchmark::Workqueue => (workqueue::words, workqueue::TEXT),
        Benchmark::Calls => (calls::words, calls::TEXT),
        Benchmark::Probe => (probe::words, probe::TEXT),
        Benchmark::Shutdown => (shutdown::words, shutdown::TEXT),
        Benchmark::Blockmq => (blockmq::words, blockmq::TEXT),
    };
    let mut text = format!("{}\n", styled(TITLE, format!("{} on {cpus}, {counted}", said.title)));
    text.push_str(&table::tables(&measured.series, said.note, width));
    text.push_str(&table::headlines(said.headlines, &measured.headlines, words, width));
    if let Some(advice) = &measured.advice {
        text.push_str(&format!("\n{}\n", styled(TITLE, "Advice")));
        for sentence in advice.sentences() {
            text.push_str(&table::wrapped(sentence, width));
        }
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
