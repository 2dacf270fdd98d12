//! Rounds of runs: case after case, its runtimes in random order, one process at a time.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::thread;
use std::time::{Duration, Instant};

use corewise_bench::process::{Program, RunError};
use corewise_bench::rng::Rng;
use corewise_bench::{Job, Line};

use crate::programs::{self, Tool};
use crate::results::Results;
use crate::session::{Cell, Peers};

/// What is to be run, and with what.
pub(crate) struct Rounds<'a> {
    pub(crate) peers: &'static Peers,
    /// The cases, each with its cells.
    pub(crate) groups: &'a [Vec<Cell>],
    pub(crate) programs: &'a BTreeMap<Tool, Program>,
    pub(crate) quick: bool,
    /// No run begins after that.
    pub(crate) until: Option<Instant>,
}

/// So many rounds count the cost of rest, which takes long and varies little.
const ROUNDS_OF_REST: usize = 2;

impl Rounds<'_> {
    /// Runs one small round that is dropped, and then so many that count. Where the time is up the
    /// last round has fewer cases than the others.
    ///
    /// # Errors
    /// There was no time for any that counts.
    pub(crate) fn run(&self, rounds: usize, seed: u64) -> Result<Results, String> {
        let (mut rng, mut results) = (Rng::new(seed), Results::default());
        let mut complaints = Vec::new();
        for round in 0..=rounds {
            for group in self.groups.iter().filter(|group| !group.is_empty()) {
                // Nothing is to be done in it: who does nothing disturbs nobody.
                let idle = group[0].case == "idle";
                if idle && !(1..=ROUNDS_OF_REST).contains(&round) {
                    continue;
                }
                if self.until.is_some_and(|until| Instant::now() >= until) {
                    if round <= 1 {
                        return Err(format!("there was no time for {}", group[0].case));
                    }
                    return Ok(results);
                }
                self.tell(round, rounds, &group[0].case);
                let mut order: Vec<&Cell> = group.iter().collect();
                rng.shuffle(&mut order);
                let lines = if idle { self.at_once(&order) } else { self.in_turn(&order, round) };
                for (cell, line) in order.iter().zip(lines) {
                    let line = line.map_err(|error| {
                        let error = error.to_string();
                        if !complaints.contains(&error) {
                            eprintln!("{error}");
                            complaints.push(error);
                        }
                    });
                    if round > 0 {
                        results.add(&cell.case, &cell.job.runtime, line.ok());
                    }
                }
            }
        }
        Ok(results)
    }

    /// Allocations per item, of the runtimes that can count them: short runs that nothing is timed
    /// of.
    pub(crate) fn count_allocations(&self) -> Vec<(Cell, Line)> {
        let counts = |cell: &&Cell| (self.peers.counts)(cell) && !cell.mimalloc;
        let cells = self.groups.iter().flatten().filter(counts);
        cells
            .filter_map(|cell| {
                let line = self.one(cell, &cell.job.clone().counting()).ok()?;
                Some((cell.clone(), line))
            })
            .collect()
    }

    fn in_turn(&self, order: &[&Cell], round: usize) -> Vec<Result<Line, RunError>> {
        let run = |cell: &&Cell| {
            let mut job = cell.job.clone();
            if round == 0 {
                (self.peers.small)(&mut job);
            }
            self.one(cell, &job)
        };
        order.iter().map(run).collect()
    }

    /// An idle one disturbs nobody: all rest at the same time.
    fn at_once(&self, order: &[&Cell]) -> Vec<Result<Line, RunError>> {
        thread::scope(|scope| {
            let threads: Vec<_> =
                order.iter().map(|cell| scope.spawn(|| self.one(cell, &cell.job))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        })
    }

    fn one(&self, cell: &Cell, job: &Job) -> Result<Line, RunError> {
        let mut program = self.programs[&cell.tool].clone();
        if cell.mimalloc {
            program.environment.push(("LD_PRELOAD".into(), programs::MIMALLOC.into()));
        }
        let limit = Duration::from_secs(if self.quick { 10 } else { 60 });
        let line = program.run(job, limit)?;
        match line.unsupported {
            None => Ok(line),
            Some(why) => Err(RunError { what: job.name(), why, said: String::new() }),
        }
    }

    fn tell(&self, round: usize, rounds: usize, case: &str) {
        if std::io::stderr().is_terminal() {
            let which = match round {
                0 => "to warm up".to_owned(),
                round => format!("round {round} of {rounds}"),
            };
            eprint!("\r\x1b[K{which}: {case}\r");
        }
    }
}
