//! Workloads on a simulated machine: the program `corewise-simulate`, built with `--cfg sim`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::run::Run;
use crate::{backend, workspace};

/// Program, with the flags by which cargo builds it.
const PROGRAM: &[&str] = &["--locked", "--config", "xtask/sim.toml", "-p", "corewise-simulate"];

/// Arguments that make cargo build the program without running it.
const BUILD: &[&str] = &["build", "--quiet", "--bin", "corewise-simulate"];

/// Path of the built program below the target folder.
const BUILT: &str = "sim/debug/corewise-simulate";

/// Builds the program if necessary, and runs it with these words.
///
/// # Errors
///
/// Fails if cargo or the program can't be started.
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

/// Compares the counts of some runs with the recorded ones.
///
/// # Errors
///
/// Fails if a count has risen, or if the program can't be built.
pub(crate) fn counts(run: &mut Run) -> Result<(), String> {
    let program = built(run)?;
    run.command(Command::new(program).arg("counts"))?;
    run.count_passed();
    Ok(())
}

/// Simulates each workload at a small size.
///
/// # Errors
///
/// Fails if a workload doesn't end, or ends with other figures the second time, or if the program
/// can't be built.
pub(crate) fn workloads(run: &mut Run) -> Result<(), String> {
    let program = built(run)?;
    let target = run.target().to_path_buf();
    let compiler = backend::compiler("sim", &target)?;
    let args = [&["test", "--test", "workloads"][..], PROGRAM, backend::AS_IN_TESTS].concat();
    run.tests(&args, |command| {
        for_simulator(command, &compiler, &target);
        // Cargo sets this variable, but a shell between cargo and rustc drops one with a hyphen in
        // its name.
        command.env("COREWISE_SIMULATE", program);
    })
}
