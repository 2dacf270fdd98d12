//! A session: rounds of runs of one benchmark on all runtimes, its records, tables and headlines.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::error::Error;
use std::fs;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use corewise_bench::bench::{Bench, Effort, On};
use corewise_bench::line::Line;
use corewise_bench::load::Load;
use corewise_bench::meter::Meter;
use corewise_bench::process::Program;
use corewise_bench::record::{Record, to_json};
use corewise_bench::rounds::{self, Cell, Plan};
use corewise_bench::{BenchError, Job};
use corewise_topology::Machine;

use crate::ALLOCATOR;
use crate::arguments::Options;
use crate::nbd::files::{self, Files};
use crate::programs::{self, Tool};
use crate::results::{self, Ask};
use crate::table;

/// Time of a quick session, in which its last round ends.
const LOOK: Duration = Duration::from_secs(44);
/// Suffix of a case's name in records: the run uses that allocator.
const MIMALLOC: &str = "/mimalloc";

/// Behaviour of an idle worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// The worker sleeps.
    Sleeps,
    /// The worker spins and yields for some microseconds, and then sleeps.
    Hesitates,
    /// The worker spins for a long time before it sleeps.
    Spins,
}

/// Condition on which a runtime takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Takes part always: ours, and the floors.
    Always,
    /// Takes part unless other peers are named.
    Usually,
    /// Takes part as [`When::Usually`], but not in a quick session: another mode of the runtime is
    /// faster in all that the headlines need.
    Thorough,
}

/// A runtime that takes part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runtime {
    /// The runtime's name in records.
    pub(crate) name: &'static str,
    pub(crate) tool: Tool,
    pub(crate) idle: Idle,
    pub(crate) when: When,
}

impl Runtime {
    pub(crate) const fn of(name: &'static str, tool: Tool, idle: Idle, when: When) -> Runtime {
        Runtime { name, tool, idle, when }
    }

    fn is_asked_for(&self, options: &Options) -> bool {
        let begins = options.peers.iter().any(|word| self.name.starts_with(&**word));
        match self.when {
            When::Always => true,
            When::Usually => begins || options.peers.is_empty(),
            When::Thorough => begins || options.peers.is_empty() && !options.quick,
        }
    }
}

/// A benchmark on all runtimes.
pub(crate) struct Peers {
    pub(crate) bench: &'static Bench,
    pub(crate) runtimes: &'static [Runtime],
    /// Returns true if a runtime has its own way to run a case, given in its parts.
    pub(crate) takes: fn(runtime: &str, &[&str]) -> bool,
    /// Returns true if a session runs a case. `named`: some cases were named.
    pub(crate) full: fn(&[&str], named: bool, &On) -> bool,
    /// Returns true if a quick session runs a case: those of the headlines.
    pub(crate) quick: fn(&[&str]) -> bool,
    /// Returns true if a case is run with a second allocator, too: the allocator has a part in it.
    pub(crate) allocates: fn(&[&str]) -> bool,
    /// Changes a run so that a session with a dozen runtimes keeps within its time.
    pub(crate) adapt: fn(&mut Job, &[&str], &On),
    /// Makes a run smaller, for the round that is dropped. That round loads programs and libraries
    /// from the disk, and goes through all code once.
    pub(crate) small: fn(&mut Job),
    /// Returns true if the allocations of a runtime's items are counted, in a run of their own.
    pub(crate) counts: fn(&Runtime, &[&str]) -> bool,
    /// Headlines, the agreed ones last.
    pub(crate) headlines: &'static [Ask],
    /// Makes the files that the runs share.
    pub(crate) files: Option<files::Make>,
    /// Does one run on a peer in Rust.
    pub(crate) run: fn(&Job, &mut Meter) -> Result<Line, BenchError>,
}

impl Peers {
    /// Returns the cells of each case of a session, in the order of a round.
    pub(crate) fn cells(&self, options: &Options, on: &On) -> Vec<Vec<Cell>> {
        let named = !options.workloads.is_empty();
        let look = options.quick && !named;
        let mut groups = Vec::new();
        for case in self.bench.cases(on) {
            let parts: Vec<&str> = case.split('/').collect();
            if !(if look { (self.quick)(&parts) } else { (self.full)(&parts, named, on) }) {
                continue;
            }
            for mimalloc in [false, true] {
                let name = format!("{case}{}", if mimalloc { MIMALLOC } else { "" });
                if mimalloc && (look || !(self.allocates)(&parts)) || !self.chosen(options, &name) {
                    continue;
                }
                let takes_part = |runtime: &&Runtime| {
                    let native = matches!(runtime.tool, Tool::Rust | Tool::Tbb);
                    (self.takes)(runtime.name, &parts)
                        && (!mimalloc || native)
                        && runtime.is_asked_for(options)
                };
                let cell = |runtime: &Runtime| {
                    let mut job = self.bench.job(&case, runtime.name, on);
                    (self.adapt)(&mut job, &parts, on);
                    let count = !look && !mimalloc && (self.counts)(runtime, &parts);
                    Cell { job, case: name.clone(), variant: runtime.name.to_owned(), count }
                };
                groups.push(self.runtimes.iter().filter(takes_part).map(cell).collect());
            }
        }
        groups
    }

    /// Returns true if the words choose the case of this name. A whole name chooses that case
    /// alone, another word each case that begins with it. No words choose all.
    fn chosen(&self, options: &Options, name: &str) -> bool {
        let fits = |word: &String| {
            let bare = word.strip_suffix(MIMALLOC).unwrap_or(word);
            match self.bench.workload(bare) {
                Some(_) => word == name,
                None => name.starts_with(&**word),
            }
        };
        options.workloads.is_empty() || options.workloads.iter().any(fits)
    }

    /// Returns the program that runs a cell.
    fn tool(&self, cell: &Cell) -> Tool {
        let mut all = self.runtimes.iter();
        let runtime = all.find(|runtime| runtime.name == cell.variant);
        runtime.expect("cells are made of these runtimes").tool
    }

    /// Checks that each word is the beginning of a runtime's name.
    fn known(&self, words: &[String]) -> Result<(), String> {
        let names: Vec<&str> = self.runtimes.iter().map(|runtime| runtime.name).collect();
        match words.iter().find(|word| !names.iter().any(|name| name.starts_with(&***word))) {
            Some(word) => {
                Err(format!("there is no peer {word:?}; there are: {}", names.join(", ")))
            }
            None => Ok(()),
        }
    }
}

/// Does one run in this process, on Corewise, on a floor or on a peer in Rust.
pub(crate) fn one(peers: &Peers, words: &[String]) -> Result<Line, Box<dyn Error>> {
    let job = Job::from_words(peers.bench, words)?;
    if job.count {
        ALLOCATOR.start();
    }
    Ok(match job.run_own(Some(allocations)) {
        Err(BenchError::NoRuntime { .. }) => {
            (peers.run)(&job, &mut Meter::new(job.count, Some(allocations)))?
        }
        done => done?,
    })
}

/// Returns the number of allocations that this process has counted.
fn allocations() -> u64 {
    ALLOCATOR.count()
}

/// Runs a session, and prints its tables.
pub(crate) fn run(peers: &'static Peers, options: &Options) -> Result<(), Box<dyn Error>> {
    peers.known(&options.peers)?;
    let effort = if options.quick { Effort::Quick } else { Effort::Full };
    let on = On::here(&Machine::live()?, effort);
    let cpus = on.cpus.len();
    let mut groups = peers.cells(options, &on);
    let mut programs = programs_of(peers, &mut groups)?;
    // Programs are built at first use, which isn't part of the time.
    let began = Instant::now();
    if groups.iter().all(Vec::is_empty) {
        return Err("no case and peer is left to run: see --help".into());
    }
    // The files live until the last run has ended.
    let files = peers.files.map(|make| make(&on)).transpose()?;
    for program in programs.values_mut() {
        program.environment.extend(files.as_ref().map(Files::variable));
    }
    let load = Load::watch();
    let rounds = options.rounds as usize;
    let is_seen = std::io::stderr().is_terminal();
    let limit = Duration::from_secs(if options.quick { 10 } else { 60 });
    let series = rounds::run(
        Plan { rounds, seed: 1 },
        options.quick.then_some(LOOK),
        &groups,
        |cell, job, round| {
            let mut job = job.clone();
            if round == 0 {
                (peers.small)(&mut job);
            }
            let mut program = programs[&peers.tool(cell)].clone();
            if cell.case.ends_with(MIMALLOC) {
                program.environment.push(("LD_PRELOAD".into(), programs::MIMALLOC.into()));
            }
            let line =
                program.run(&job, limit).unwrap_or_else(|error| job.cannot(&error.to_string()));
            // The runtime is left out from then on.
            if let Some(why) = &line.unsupported {
                eprintln!("{}: {why}", job.name());
            }
            Ok::<_, Infallible>(line)
        },
        |step| {
            if is_seen {
                eprint!("\r\x1b[K{step}\r");
            }
        },
    )?;
    let mut records: Vec<Record> =
        series.iter().filter_map(|one| one.record(peers.bench.name)).collect();
    let headlines = results::headlines(&series, peers.headlines);
    println!("{}", table::tables(peers, &records, &headlines).trim_start_matches('\n'));
    println!("{}", circumstances(&load, cpus, began.elapsed()));
    records.extend(results::records(peers.bench.name, &headlines));
    if let Some(file) = &options.out {
        let written = fs::write(file, to_json(&records));
        written.map_err(|error| format!("{} can't be written: {error}", file.display()))?;
    }
    Ok(())
}

/// Builds the programs of the cells, and removes the cells whose program can't be built.
fn programs_of(
    peers: &Peers,
    groups: &mut [Vec<Cell>],
) -> Result<BTreeMap<Tool, Program>, Box<dyn Error>> {
    let folder = programs::folder()?;
    let mut programs = BTreeMap::new();
    let tools: BTreeSet<Tool> = groups.iter().flatten().map(|cell| peers.tool(cell)).collect();
    for tool in tools {
        match tool.build(peers.bench.name, &folder) {
            Ok(program) => drop(programs.insert(tool, program)),
            Err(why) => eprintln!("skipped, {tool:?}: {why}"),
        }
    }
    let with_mimalloc = |cell: &Cell| cell.case.ends_with(MIMALLOC);
    let mimalloc = groups.iter().flatten().any(with_mimalloc).then(programs::mimalloc);
    if let Some(Err(why)) = &mimalloc {
        eprintln!("skipped, the runs with mimalloc: {why}");
    }
    let preloads = matches!(mimalloc, Some(Ok(_)));
    for group in groups {
        group.retain(|cell| {
            programs.contains_key(&peers.tool(cell)) && (preloads || !with_mimalloc(cell))
        });
    }
    Ok(programs)
}

/// Describes the load of the machine during the session.
fn circumstances(load: &Load, cpus: usize, took: Duration) -> String {
    let shares = load.spent().map_or_else(String::new, |spent| {
        let all = took.as_secs_f64() * cpus as f64;
        let (others, stolen) = (spent.others / all * 100.0, spent.stolen / all * 100.0);
        let warning =
            if others + stolen > 5.0 { ": not quiet, believe the ratios only" } else { "" };
        format!("; others used {others:.1} % of them, the host took {stolen:.1} %{warning}")
    });
    format!("{cpus} CPUs{shares}; {} s in all", took.as_secs())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::arguments::options;
    use corewise_topology::Topology;

    /// Returns the runtimes of a case in a session of this command line, on four CPUs.
    pub(crate) fn names(line: &str, case: &str) -> Vec<String> {
        let cells = cells(line);
        let of_case = cells.into_iter().flatten().filter(|cell| cell.case == case);
        of_case.map(|cell| cell.job.runtime).collect()
    }

    pub(crate) fn cells(line: &str) -> Vec<Vec<Cell>> {
        let options = options(line);
        let effort = if options.quick { Effort::Quick } else { Effort::Full };
        let on = On::made_up(&Topology::synthetic("core:4 pu:1").unwrap(), effort);
        crate::peers(&options.bench).cells(&options, &on)
    }

    /// Runs each cell of a session that this program runs itself, made smaller by `small`.
    pub(crate) fn run_all(line: &str, takes: fn(&Cell) -> bool, small: fn(&mut Job)) {
        let options = options(line);
        let on = On::here(&Machine::live().unwrap(), Effort::Full);
        let peers = crate::peers(&options.bench);
        let cells = peers.cells(&options, &on);
        let rust = |cell: &&Cell| peers.tool(cell) == Tool::Rust && takes(cell);
        for cell in cells.iter().flatten().filter(rust) {
            let mut job = cell.job.clone();
            small(&mut job);
            let line = one(peers, &job.to_words()).unwrap();
            assert!(line.unsupported.is_none() && !line.metrics.is_empty(), "{}", job.name());
        }
    }

    #[test]
    fn who_is_not_there_is_named_with_those_that_there_are() {
        let words = |text: &str| [text.to_owned()];
        assert_eq!(crate::peers("calls").known(&words("glommio")), Ok(()));
        let problem = crate::peers("calls").known(&words("tbb")).unwrap_err();
        assert!(problem.contains("\"tbb\"") && problem.contains("kanal"), "{problem}");
        for (bench, case) in
            [("workqueue", "idle"), ("calls", "roundtrip/hot"), ("shutdown", "flat/5/0")]
        {
            let words = [format!("case={case}"), "runtime=none".to_owned()];
            let problem = one(crate::peers(bench), &words).unwrap_err().to_string();
            assert!(problem.contains("none"), "{problem}");
        }
    }
}
