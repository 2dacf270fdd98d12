//! Gives the program the commit that it is built from: results without a commit are worth little.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::process::Command;

fn main() {
    // The sources of the program, and the log of HEAD, which a commit changes.
    for path in [".", "../costs", "../../crates", "../../Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    // Tags are left out, so the name never moves.
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    println!("cargo::rustc-env=COREWISE_COMMIT={}", commit.unwrap_or_default());
}

/// Returns git's output, or `None` without git or a repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
