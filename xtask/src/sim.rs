//! Workloads on a simulated machine: the program `corewise-simulate`, built with `--cfg sim`.

use std::process::{Command, ExitCode};

use crate::run::Run;
use crate::{backend, workspace};

/// What Cargo is told to do.
const WORDS: [&str; 7] =
    ["run", "--quiet", "--locked", "--profile=sim", "--package", "corewise-simulate", "--"];

/// Builds the program where it has to be, and gives it the words.
///
/// # Errors
///
/// Cargo couldn't be started.
pub(crate) fn run(words: &[String]) -> Result<ExitCode, String> {
    let root = workspace::root()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    backend::build_for(&mut command, "sim", &workspace::target(&root));
    let status = command
        .args(WORDS)
        .args(words)
        .status()
        .map_err(|error| format!("cargo couldn't be started: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

/// Compares what some runs count with what was recorded.
///
/// # Errors
///
/// They count more, or the program couldn't be built.
pub(crate) fn counts(run: &mut Run) -> Result<(), String> {
    let target = run.target().to_path_buf();
    run.cargo(&[&WORDS[..], &["counts"]].concat(), |command| {
        backend::build_for(command, "sim", &target);
    })?;
    run.count_passed();
    Ok(())
}

/// Simulates each workload, small.
///
/// # Errors
///
/// One doesn't end, or not twice with the same figures; or the program couldn't be built.
pub(crate) fn workloads(run: &mut Run) -> Result<(), String> {
    let target = run.target().to_path_buf();
    let package = ["--package", "corewise-simulate", "--test", "workloads"];
    run.tests(&[&["test", "--locked", "--profile=sim"][..], &package].concat(), |command| {
        backend::build_for(command, "sim", &target);
    })
}
