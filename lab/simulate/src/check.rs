//! The model beside what was measured: a file of records, each run simulated with several seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Seeds of each run: a contended run differs from seed to seed as it does from one time to the
/// next on a real machine.
const SEEDS: u64 = 3;
/// Two figures lie apart where one is larger than the other by this factor.
const APART: f64 = 1.15;

/// A file of records.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Records {
    record: Vec<Record>,
}

/// One figure of one run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    machine: String,
    words: String,
    metric: String,
    measured: f64,
    source: String,
    /// The model was fitted by it.
    #[serde(default)]
    fitted: bool,
}

impl Record {
    fn run(&self) -> Run<'_> {
        Run { machine: &self.machine, words: &self.words }
    }

    /// Its words but for the ones that begin so.
    fn but(&self, keys: &[&str]) -> String {
        let stays = |word: &&str| !keys.iter().any(|key| word.starts_with(key));
        self.words.split(' ').filter(stays).collect::<Vec<_>>().join(" ")
    }
}

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run<'a> {
    pub(crate) machine: &'a str,
    pub(crate) words: &'a str,
}

/// A record, and what the model says.
struct Compared<'a> {
    record: &'a Record,
    simulated: f64,
}

impl Compared<'_> {
    fn ratio(&self) -> f64 {
        self.simulated / self.record.measured
    }
}

/// Simulates each run of the file, and prints what was measured, what the model says, and the
/// ratio.
///
/// # Errors
/// The file can't be read, or a run failed.
pub(crate) fn check(file: &str, costs: &str, changes: &[String]) -> Result<(), String> {
    let records: Records = read(file)?;
    let runs: BTreeSet<Run<'_>> = records.record.iter().map(Record::run).collect();
    let costs = ["--fields", "0", "--costs", costs].map(str::to_owned);
    let changes = changes.iter().flat_map(|change| ["--cost".to_owned(), change.clone()]);
    let with: Vec<String> = costs.into_iter().chain(changes).collect();
    let lines = simulate_all(&runs.into_iter().collect::<Vec<_>>(), SEEDS, &with)?;
    let mut all = Vec::new();
    println!("{:>12} {:>12} {:>6}  run", "measured", "simulated", "ratio");
    if let Some(record) =
        records.record.iter().find(|one| !one.measured.is_normal() || one.measured < 0.0)
    {
        return Err(format!(
            "{file}: {}: {} was measured as {}, which is no number above 0",
            record.words, record.metric, record.measured
        ));
    }
    for record in &records.record {
        let of_run = &lines[&record.run()];
        let figures = of_run.iter().map(|line| line["metrics"][&record.metric].as_f64());
        let figures: Option<Vec<f64>> = figures.collect();
        let mut figures =
            figures.ok_or_else(|| format!("{}: no {}", record.words, record.metric))?;
        figures.sort_by(f64::total_cmp);
        let compared = Compared { record, simulated: figures[figures.len() / 2] };
        println!(
            "{:>12.4e} {:>12.4e} {:>6.2}  {} on {}, {}{} ({})",
            record.measured,
            compared.simulated,
            compared.ratio(),
            of(&record.words),
            record.machine,
            record.metric,
            if record.fitted { ", fitted" } else { "" },
            record.source,
        );
        all.push(compared);
    }
    near(&all);
    order(&all);
    Ok(())
}

/// What a file says.
///
/// # Errors
/// It can't be read, or says something else.
pub(crate) fn read<T: DeserializeOwned>(file: &str) -> Result<T, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("{file}: {error}"))
}

/// Whether it is a rate, a time or CPU time, no count and no tail, and nothing was fitted by it.
fn counts(one: &&Compared<'_>) -> bool {
    let left_out = ["p99", "threads", "_switches", "wakeups_per_1000"];
    !one.record.fitted && !left_out.iter().any(|end| one.record.metric.ends_with(end))
}

/// How many lie near.
fn near(all: &[Compared<'_>]) {
    let ratios: Vec<f64> = all.iter().filter(counts).map(Compared::ratio).collect();
    let within = |most: f64| {
        let count = ratios.iter().filter(|ratio| (1.0 / most..=most).contains(*ratio)).count();
        100 * count / ratios.len().max(1)
    };
    println!(
        "Of {} rates and medians that nothing was fitted by, {} % lie within 15 %, {} % within 30 %, {} % within a \
         factor of 2",
        ratios.len(),
        within(1.15),
        within(1.30),
        within(2.0)
    );
}

/// How many pairs that were measured apart the model has in the same order.
fn order(all: &[Compared<'_>]) {
    let told = |what: &str, same: &dyn Fn(&Record) -> String| {
        let mut groups: BTreeMap<String, Vec<&Compared<'_>>> = BTreeMap::new();
        for one in all.iter().filter(counts) {
            groups.entry(same(one.record)).or_default().push(one);
        }
        let (mut right, mut pairs) = (0, 0);
        for group in groups.values() {
            for (at, one) in group.iter().enumerate() {
                for other in
                    group[at + 1..].iter().filter(|other| other.record.run() != one.record.run())
                {
                    let measured = one.record.measured / other.record.measured;
                    if (1.0 / APART..=APART).contains(&measured) {
                        continue;
                    }
                    pairs += 1;
                    let simulated = one.simulated / other.simulated;
                    right += usize::from((measured > 1.0) == (simulated > 1.0));
                }
            }
        }
        println!("Of {pairs} pairs of {what} more than 15 % apart, {right} are in the right order");
    };
    told("scopes", &|record| {
        format!("{} {} {}", record.machine, record.metric, record.but(&["runtime="]))
    });
    told("numbers of CPUs", &|record| format!("{} {}", record.metric, record.but(&["workers="])));
}

pub(crate) type Lines<'a> = BTreeMap<Run<'a>, Vec<Value>>;

/// The lines of the benchmark, by run: each seed's. As many processes at once as there are CPUs.
pub(crate) fn simulate_all<'a>(
    runs: &[Run<'a>],
    seeds: u64,
    with: &[String],
) -> Result<Lines<'a>, String> {
    let todo = Mutex::new(runs.iter().flat_map(|run| (1..=seeds).map(move |seed| (*run, seed))));
    let lines = Mutex::new(Ok(Lines::new()));
    let next = || todo.lock().unwrap_or_else(PoisonError::into_inner).next();
    let each = || {
        while let Some((run, seed)) = next() {
            let outcome = simulate(run, seed, with);
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            match (&mut *lines, outcome) {
                (Ok(lines), Ok(line)) => lines.entry(run).or_default().push(line),
                (Err(_), _) => return,
                (failed, Err(error)) => *failed = Err(error),
            }
        }
    };
    thread::scope(|scope| {
        let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        (0..cpus).for_each(|_| drop(scope.spawn(each)));
    });
    lines.into_inner().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn simulate(run: Run<'_>, seed: u64, with: &[String]) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(with).args(["--json", "--machine", run.machine]);
    command.args(["--seed", &seed.to_string()]);
    command.args(run.words.split(' '));
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{}: {}", run.words, String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{}: {error}", run.words))
}

/// The words that tell runs apart.
fn of(words: &str) -> String {
    let told =
        |word: &&str| ["case=", "runtime=", "producers="].iter().any(|key| word.starts_with(key));
    let values = words.split(' ').filter(told).filter_map(|word| word.split_once('='));
    let named = values.map(|(key, value)| match key {
        "producers" => format!("{value} producers"),
        _ => value.to_owned(),
    });
    let beside = words.strip_prefix("--neighbours ").and_then(|rest| rest.split(' ').next());
    let beside = beside.map(|count| format!("beside {count} neighbours"));
    named.chain(beside).collect::<Vec<_>>().join(" ")
}
