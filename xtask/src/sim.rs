//! Workloads on a simulated machine: the program `corewise-simulate`, built with `--cfg sim`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::run::Run;
use crate::{backend, workspace};

/// The program, and how Cargo is to build it.
const PROGRAM: &[&str] = &["--locked", "--config", "xtask/sim.toml", "-p", "corewise-simulate"];

/// Tells Cargo to build the program, and not to run it.
const BUILD: &[&str] = &["build", "--quiet", "--bin", "corewise-simulate"];

/// Where it lies below the target folder then.
const BUILT: &str = "sim/debug/corewise-simulate";

/// Builds the program where it has to be, and gives it the words.
///
/// # Errors
///
/// Cargo or the program couldn't be started.
pub(crate) fn run(words: &[String]) -> Result<ExitCode, String> {
    let root = workspace::root()?;
    let target = workspace::target(&root);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args([BUILD, PROGRAM, backend::AS_IN_TESTS].concat()).current_dir(&root);
    for_simulator(&mut build, &backend::compiler("sim", &target)?, &target);
    let built = build.status().map_err(|error| format!("cargo couldn't be started: {error}"))?;
    if !built.success() {
        return Ok(code(built.code()));
    }
    let program = target.join(BUILT);
    let ended = Command::new(&program)
        .args(words)
        .status()
        .map_err(|error| format!("{} couldn't be started: {error}", program.display()))?;
    Ok(code(ended.code()))
}

fn code(of_process: Option<i32>) -> ExitCode {
    ExitCode::from(of_process.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn for_simulator(cargo: &mut Command, compiler: &Path, target: &Path) {
    cargo.env("RUSTC_WORKSPACE_WRAPPER", compiler);
    backend::apart(cargo, "sim", target);
}

/// Builds the program in a step.
fn built(run: &mut Run) -> Result<PathBuf, String> {
    let target = run.target().to_path_buf();
    let compiler = backend::compiler("sim", &target)?;
    run.cargo(&[BUILD, PROGRAM, backend::AS_IN_TESTS].concat(), |command| {
        for_simulator(command, &compiler, &target);
    })?;
    Ok(target.join(BUILT))
}

/// Compares what some runs count with what was recorded.
///
/// # Errors
///
/// They count more, or the program couldn't be built.
pub(crate) fn counts(run: &mut Run) -> Result<(), String> {
    let program = built(run)?;
    run.command(Command::new(program).arg("counts"))?;
    run.count_passed();
    Ok(())
}

/// Simulates each workload, small.
///
/// # Errors
///
/// One doesn't end, or not twice with the same figures; or the program couldn't be built.
pub(crate) fn workloads(run: &mut Run) -> Result<(), String> {
    let program = built(run)?;
    let target = run.target().to_path_buf();
    let compiler = backend::compiler("sim", &target)?;
    let args = [&["test", "--test", "workloads"][..], PROGRAM, backend::AS_IN_TESTS].concat();
    run.tests(&args, |command| {
        for_simulator(command, &compiler, &target);
        // Cargo would say so, but a shell between it and rustc drops a variable with a hyphen in
        // its name.
        command.env("COREWISE_SIMULATE", program);
    })
}
