//! `corewise bench`: measures this machine, and says what follows.
//!
//! Every run is a process of its own: this program, started again with `--run` and the run's words.

mod facts;
mod machine;
mod page;
mod progress;
mod table;
mod words;

use std::io::Write;
use std::time::Duration;

use corewise::topology::Machine;
use corewise_bench::advice::{Layout, advise};
use corewise_bench::bench::{self, Bench, Effort, On, Pairs};
use corewise_bench::blockmq::disk::{DISK, Disk};
use corewise_bench::counting::Counting;
use corewise_bench::job::Job;
use corewise_bench::names;
use corewise_bench::process::Program;
use corewise_bench::record::{Record, to_json};
use corewise_bench::rounds::{self, Cell, Headline, Plan, Series};
use corewise_bench::workqueue::SHARD_SIZES;

use crate::args;
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
    which: &'static Bench,
    series: Vec<Series>,
    headlines: Vec<Headline>,
    /// Sentences, the advice first; none where there is no scope to choose.
    advice: Vec<String>,
}

impl Measured {
    fn records(&self) -> Vec<Record> {
        rounds::records(self.which.name, &self.series, &self.headlines)
    }
}

/// Measures, and prints the tables and the advice.
pub(crate) fn run(args: &args::Bench, bars: &Bars) -> Result<(), Failure> {
    if let Some((which, words)) = args.run.split_first() {
        let none = || Failure::new(format!("no benchmark '{which}' here"));
        let line = one(bench::named(which).ok_or_else(none)?, words)?;
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
fn one(bench: &'static Bench, words: &[String]) -> Result<String, Failure> {
    let job = Job::from_words(bench, words).map_err(|error| Failure::new(error.to_string()))?;
    if job.count {
        ALLOCATOR.start();
    }
    let line = job.run_own(Some(|| ALLOCATOR.count())).map_err(failure)?;
    Ok(line.to_json())
}

/// How thorough the runs are.
fn effort(args: &args::Bench) -> Effort {
    if args.quick { Effort::Quick } else { Effort::Full }
}

/// Whether a case is to be run. A workload that is asked for is run in a quick call too.
fn is_wanted(args: &args::Bench, case: &str, is_quick: bool) -> bool {
    match args.workload.as_slice() {
        [] => !args.quick || is_quick,
        wanted => wanted.iter().any(|word| names::matches(word, case)),
    }
}

/// Runs the benchmarks that were asked for, those that have the workloads that were asked for.
fn measure(machine: &Machine, args: &args::Bench, bars: &Bars) -> Result<Vec<Measured>, Failure> {
    let on = On::here(machine, effort(args));
    let asked = |which: &&Bench| args.names.is_empty() || args.names.contains(which);
    let cells = |which: &'static Bench| {
        let cells = which.cells(&on, |case, is_quick| is_wanted(args, case, is_quick));
        (!cells.is_empty()).then_some((which, cells))
    };
    let plans: Vec<_> = bench::ALL.into_iter().filter(asked).filter_map(cells).collect();
    if plans.is_empty() {
        let asked = args.workload.join(", ");
        return Err(Failure::new(format!("the benchmark has no such workload: {asked}"))
            .help("leave out the benchmark's name: the workload's name is enough"));
    }
    // They share the time. A number of rounds that was asked for is kept, also on a machine that
    // has much else to do.
    let parts = u32::try_from(plans.len()).unwrap_or(u32::MAX);
    let budget = (args.quick && args.rounds.is_none()).then_some(QUICK_BUDGET / parts);
    let measured = |(which, groups): (&'static Bench, Vec<Vec<Cell>>)| {
        let series = run_cells(which, args, &groups, bars, budget)?;
        let headlines = (which.headlines)(&Pairs { series: &series, seed: SEED });
        let headlines = headlines.into_iter().filter_map(|(name, of)| Some((name, of?))).collect();
        let layout = || Layout::of(machine.topology(), &SHARD_SIZES);
        let advice = match which.name {
            "workqueue" => advise(&layout(), &series, SEED),
            _ => Vec::new(),
        };
        Ok(Measured { which, series, headlines, advice })
    };
    plans.into_iter().map(measured).collect()
}

/// All rounds of the cells, or as many as the budget has room for.
fn run_cells(
    which: &Bench,
    args: &args::Bench,
    groups: &[Vec<Cell>],
    bars: &Bars,
    budget: Option<Duration>,
) -> Result<Vec<Series>, Failure> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program to start it: {error}")))?;
    let mut program = Program::new(this).argument("bench").argument("--run").argument(which.name);
    let needs_disk = groups.iter().flatten().any(|cell| names::matches("file", &cell.case));
    let disk = needs_disk.then(|| Disk::for_runs(effort(args)).map_err(failure)).transpose()?;
    if let Some(disk) = &disk {
        program.environment.push((DISK.into(), disk.path().into()));
    }
    let rounds = usize::from(args.rounds.unwrap_or(match (args.quick, which.name) {
        (true, _) => 6,
        // One of them sleeps for minutes.
        (false, "shutdown") => 3,
        (false, _) => 10,
    }));
    let progress = Progress::new(bars, rounds);
    let series = rounds::run(
        Plan { rounds, seed: SEED },
        budget,
        groups,
        |_, job, _| program.run(job, LIMIT),
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
    let said = words::text(measured.which);
    let mut text = format!("{}\n", styled(TITLE, format!("{} on {cpus}, {counted}", said.title)));
    text.push_str(&table::tables(&measured.series, said.note, width));
    text.push_str(&table::headlines(said.headlines, &measured.headlines, width));
    if !measured.advice.is_empty() {
        text.push_str(&format!("\n{}\n", styled(TITLE, "Advice")));
        for sentence in &measured.advice {
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

#[cfg(test)]
mod tests {
    use corewise::topology::Topology;

    use super::*;

    #[test]
    fn the_cause_of_an_error_is_told_once() {
        let missing = Topology::from_xml("/no/such/file").unwrap_err();
        let told = failure(corewise_bench::BenchError::Cpus(missing)).words();
        assert!(
            told.starts_with("the workload's CPUs can't be had: cannot read /no/such"),
            "{told}"
        );
        assert_eq!(told.matches("No such file").count(), 1, "{told}");
    }
}
