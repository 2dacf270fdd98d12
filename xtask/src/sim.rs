//! A workload on a simulated machine: the program `corewise-simulate`, built with `--cfg sim`.

use std::process::{Command, ExitCode};

use crate::{backend, workspace};

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
        .args(["run", "--quiet", "--locked", "--release", "--package", "corewise-simulate", "--"])
        .args(words)
        .status()
        .map_err(|error| format!("cargo couldn't be started: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}
