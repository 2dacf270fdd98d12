//! Runs of this program, several at once.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::Value;

/// A run: a machine, and the words of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run<'a> {
    pub(crate) machine: &'a str,
    pub(crate) words: &'a str,
}

/// The printed lines of each run, one for each seed.
pub(crate) type Lines<'a> = BTreeMap<Run<'a>, Vec<Value>>;

/// Does each run with seeds from 1 to `seeds`, in as many processes at once as there are CPUs.
///
/// # Errors
/// The first error of a run.
pub(crate) fn simulate_all<'a>(runs: &[Run<'a>], seeds: u64) -> Result<Lines<'a>, String> {
    let todo = Mutex::new(runs.iter().flat_map(|run| (1..=seeds).map(move |seed| (*run, seed))));
    let lines = Mutex::new(Ok(Lines::new()));
    let next = || todo.lock().unwrap_or_else(PoisonError::into_inner).next();
    let each = || {
        while let Some((run, seed)) = next() {
            let outcome = simulate(run, seed, &[]);
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

/// Does one run in a process of its own, and returns its line.
///
/// # Errors
/// The program fails, or prints no line of JSON.
pub(crate) fn simulate(run: Run<'_>, seed: u64, with: &[&str]) -> Result<Value, String> {
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
