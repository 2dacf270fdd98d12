//! The workqueue's workloads on everybody: rounds, records, tables, headlines.

pub(crate) mod catalogue;
mod headlines;
mod load;
pub(crate) mod programs;
mod rounds;
mod table;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use corewise_bench::line::{Line, METRICS};
use corewise_bench::process::Program;
use corewise_bench::record::{Record, to_json};
use corewise_bench::stats::Summary;
use corewise_topology::Machine;

use crate::arguments::Options;
use catalogue::Cell;
use headlines::Results;
use load::Load;
use programs::Tool;
use rounds::Rounds;

/// When a look starts no further round that may not end in time.
const LOOK: Duration = Duration::from_secs(40);

/// Runs what was asked for, and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    let machine = Machine::live()?;
    let online = machine.online();
    let mut groups = catalogue::cells(options, &online);
    let programs = programs_of(&mut groups)?;
    if groups.iter().all(Vec::is_empty) {
        return Err("no case and peer is left to run: see --help".into());
    }
    let load = Load::watch(online.len());
    let until = options.quick.then(|| began + LOOK);
    let rounds = Rounds { groups: &groups, programs: &programs, quick: options.quick, until };
    let results = rounds.run(options.rounds, options.seed)?;
    let counts = if options.quick { Vec::new() } else { rounds.count_allocations() };
    let mut records = records_of(&groups, &results, &counts);
    let headlines = headlines::headlines(&results);
    if !options.json {
        println!("{}", table::tables(&records, &headlines).trim_start_matches('\n'));
        println!("{}", circumstances(&load, online.len(), began.elapsed()));
    }
    records.extend(headlines::records(&headlines));
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

/// Builds what the cells need, and takes away those for which there is nothing to run them with.
fn programs_of(groups: &mut [Vec<Cell>]) -> Result<BTreeMap<Tool, Program>, Box<dyn Error>> {
    let folder = programs::folder()?;
    let mut programs = BTreeMap::new();
    for tool in [Tool::Rust, Tool::Tbb, Tool::Go, Tool::Java] {
        if !groups.iter().flatten().any(|cell| cell.tool == tool) {
            continue;
        }
        match tool.build(&folder) {
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
fn records_of(groups: &[Vec<Cell>], results: &Results, counts: &[(Cell, Line)]) -> Vec<Record> {
    let mut records = Vec::new();
    for cell in groups.iter().flatten() {
        let runtime = &cell.job.runtime;
        let counted = counts.iter().filter(|(of, _)| of == cell).map(|(_, line)| line);
        let lines: Vec<&Line> =
            results.lines(&cell.case, runtime).iter().flatten().chain(counted).collect();
        for (metric, unit) in METRICS {
            let values: Vec<f64> =
                lines.iter().filter_map(|line| line.metrics.get(metric).copied()).collect();
            if let Some(summary) = Summary::of(&values) {
                let record = Record::new("workqueue", &cell.case, runtime, metric, unit, summary);
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
