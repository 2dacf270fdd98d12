//! A session: rounds of runs of one benchmark on everybody, its records, tables and headlines.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::str::FromStr;
use std::time::{Duration, Instant};

use corewise_bench::BenchError;
use corewise_bench::line::{Line, METRICS};
use corewise_bench::process::{Job, Program};
use corewise_bench::record::{Record, to_json};
use corewise_bench::stats::Summary;

use crate::arguments::Options;
use crate::counting;
use crate::load::Load;
use crate::programs::{self, Tool};
use crate::results::{self, Headline, Results};
use crate::rounds::Rounds;
use crate::table;

/// When a look starts no further round that may not end in time.
const LOOK: Duration = Duration::from_secs(40);

/// What an idle worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It sleeps.
    Sleeps,
    /// It spins and yields for some microseconds, and then sleeps.
    Hesitates,
    /// It spins for a good while first.
    Spins,
}

/// A benchmark: the jobs of its runs, and how its results are shown.
pub(crate) trait Workload: Job + PartialEq + Sync {
    /// Its name in records.
    const NAME: &'static str;
    /// What this program is asked with for one run.
    const COMMAND: &'static str;

    /// A part of it: enough for the round that is dropped, which finds programs and libraries on
    /// the disk, and goes through all code once.
    #[must_use]
    fn small(self) -> Self;

    /// Whether nothing is to be done in it: who does nothing disturbs nobody, so all runs of a round
    /// are made at once, and few are enough.
    fn rests(&self) -> bool;

    /// Whether the allocations of its items are counted, in a run of their own.
    fn counts(&self, tool: Tool) -> bool;

    /// The columns of the tables of a workload; rows are ordered by the first.
    fn columns(workload: &str) -> &'static [&'static str];

    /// The peers that can take part, and what their idle workers do.
    fn runtimes() -> impl Iterator<Item = (&'static str, Idle)>;

    /// The headlines, the agreed ones last.
    fn headlines(results: &Results) -> Vec<Headline>;
}

/// One runtime in one case, under one allocator: a row of the tables.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell<J> {
    /// The case in records: the job's, and `/mimalloc` behind it where that is the allocator.
    pub(crate) case: String,
    pub(crate) job: J,
    pub(crate) tool: Tool,
    pub(crate) mimalloc: bool,
}

/// Whether these words choose the case of this name, all cases being a `C`: a whole name is that
/// case alone, another word every case that begins so. No words choose all.
pub(crate) fn chosen<C: FromStr>(words: &[String], name: &str) -> bool {
    let is_case = |word: &str| {
        let bare = word.strip_suffix("/mimalloc").unwrap_or(word);
        bare.parse::<C>().is_ok()
    };
    let fits = |word: &String| if is_case(word) { word == name } else { name.starts_with(&**word) };
    words.is_empty() || words.iter().any(fits)
}

/// One run in this process, on Corewise or a floor, or on a `peer` that is Rust.
pub(crate) fn one<J: Workload>(
    words: &[String],
    peer: impl FnOnce(&J) -> Result<Option<Line>, BenchError>,
) -> Result<Line, Box<dyn Error>> {
    let job = J::from_words(words)?;
    if job.is_counting() {
        counting::count();
    }
    if let Some(line) = job.run_own(Some(counting::allocations))? {
        return Ok(line);
    }
    let unknown = || format!("there is no runtime {:?} in this program", job.runtime());
    Ok(peer(&job)?.ok_or_else(unknown)?)
}

/// Runs what was asked for on so many CPUs, and prints it.
pub(crate) fn run<J: Workload>(
    options: &Options,
    mut groups: Vec<Vec<Cell<J>>>,
    cpus: usize,
) -> Result<(), Box<dyn Error>> {
    known::<J>(&options.peers)?;
    let programs = programs_of(&mut groups)?;
    // Programs are built at first use, which isn't part of a look.
    let began = Instant::now();
    if groups.iter().all(Vec::is_empty) {
        return Err("no case and peer is left to run: see --help".into());
    }
    let load = Load::watch(cpus);
    let until = options.quick.then(|| began + LOOK);
    let rounds = Rounds { groups: &groups, programs: &programs, quick: options.quick, until };
    let results = rounds.run(options.rounds, options.seed)?;
    let counts = if options.quick { Vec::new() } else { rounds.count_allocations() };
    let mut records = records_of(&groups, &results, &counts);
    let headlines = J::headlines(&results);
    if !options.json {
        println!("{}", table::tables::<J>(&records, &headlines).trim_start_matches('\n'));
        println!("{}", circumstances(&load, cpus, began.elapsed()));
    }
    records.extend(results::records(J::NAME, &headlines));
    let json = to_json(&records);
    if options.json {
        print!("{json}");
    }
    if let Some(file) = &options.out {
        let written = fs::write(file, &json);
        written.map_err(|error| format!("{} can't be written: {error}", file.display()))?;
    }
    Ok(())
}

/// Each word is to be the beginning of somebody's name.
fn known<J: Workload>(peers: &[String]) -> Result<(), String> {
    let names: Vec<&str> = J::runtimes().map(|(name, _)| name).collect();
    match peers.iter().find(|word| !names.iter().any(|name| name.starts_with(&***word))) {
        Some(word) => Err(format!("there is no peer {word:?}; there are: {}", names.join(", "))),
        None => Ok(()),
    }
}

/// Builds what the cells need, and takes away those for which there is nothing to run them with.
fn programs_of<J: Workload>(
    groups: &mut [Vec<Cell<J>>],
) -> Result<BTreeMap<Tool, Program>, Box<dyn Error>> {
    let folder = programs::folder()?;
    let mut programs = BTreeMap::new();
    for tool in Tool::ALL {
        if !groups.iter().flatten().any(|cell| cell.tool == tool) {
            continue;
        }
        match tool.build(J::COMMAND, &folder) {
            Ok(program) => drop(programs.insert(tool, program)),
            Err(why) => eprintln!("skipped, {tool:?}: {why}"),
        }
    }
    let mimalloc = groups.iter().flatten().any(|cell| cell.mimalloc).then(programs::mimalloc);
    if let Some(Err(why)) = &mimalloc {
        eprintln!("skipped, the runs with mimalloc: {why}");
    }
    let preloads = matches!(mimalloc, Some(Ok(_)));
    for group in groups {
        group.retain(|cell| programs.contains_key(&cell.tool) && (preloads || !cell.mimalloc));
    }
    Ok(programs)
}

/// One record for each metric of each cell, in the order of the cells.
fn records_of<J: Workload>(
    groups: &[Vec<Cell<J>>],
    results: &Results,
    counts: &[(Cell<J>, Line)],
) -> Vec<Record> {
    let mut records = Vec::new();
    for cell in groups.iter().flatten() {
        let runtime = cell.job.runtime();
        let counted = counts.iter().filter(|(of, _)| of == cell).map(|(_, line)| line);
        let lines: Vec<&Line> =
            results.lines(&cell.case, runtime).iter().flatten().chain(counted).collect();
        for &(metric, unit) in METRICS {
            let values: Vec<f64> =
                lines.iter().filter_map(|line| line.metrics.get(metric).copied()).collect();
            if let Some(summary) = Summary::of(&values) {
                let record = Record::new(J::NAME, &cell.case, runtime, metric, unit, summary);
                records.push(record);
            }
        }
    }
    records
}

/// What the figures were measured under.
fn circumstances(load: &Load, cpus: usize, took: Duration) -> String {
    let shares = load.foreign_and_stolen().map_or_else(String::new, |(foreign, stolen)| {
        let (foreign, stolen) = (foreign * 100.0, stolen * 100.0);
        let warning =
            if foreign + stolen > 5.0 { ": not quiet, believe the ratios only" } else { "" };
        format!("; others used {foreign:.1} % of them, the host took {stolen:.1} %{warning}")
    });
    format!("{cpus} CPUs{shares}; {} s in all", took.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_there_is_not_is_named_with_those_that_there_are() {
        use corewise_bench::{calls, workqueue};
        let words = |text: &str| [text.to_owned()];
        assert_eq!(known::<calls::job::Job>(&words("glommio")), Ok(()));
        assert_eq!(known::<workqueue::job::Job>(&words("tbb")), Ok(()));
        let problem = known::<calls::job::Job>(&words("tbb")).unwrap_err();
        assert!(problem.contains("\"tbb\"") && problem.contains("kanal"), "{problem}");
    }
}
