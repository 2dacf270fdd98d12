//! Other targets than that of the tests: checks that the product compiles for them.

use std::path::Path;
use std::process::Command;

use crate::backend;
use crate::run::Run;

/// Targets, each with the packages that are checked for it.
const TARGETS: &[(&str, &[&str])] = &[
    // This is another processor and another C library at once. No code depends on the pair of them,
    // except in the crate of the next line.
    ("aarch64-unknown-linux-musl", &["corewise", "corewise-cli", "corewise-bench"]),
    ("aarch64-unknown-linux-gnu", &["corewise-sync"]),
    // Crates on the block layer are left out: the crate `io-uring` knows 64 bits only.
    ("i686-unknown-linux-gnu", &["corewise-kernel-log", "corewise-smp", "corewise-device"]),
    // The libraries that need no Linux. The functions that need it return their one error.
    ("aarch64-apple-darwin", PORTABLE),
    // This is an older processor. Only these crates, and the two below, have code for a processor.
    ("x86_64-apple-darwin", &["corewise-workqueue"]),
];

/// The libraries that work on any system. None has a dependency that compiles C.
const PORTABLE: &[&str] = &[
    "corewise-sync",
    "corewise-topology",
    "corewise-timeline",
    "corewise-kernel-log",
    "corewise-workqueue",
    "corewise-device",
    "corewise-costs",
];

/// Runs the tests of the libraries that need no Linux over the substitute for other systems.
///
/// # Errors
///
/// Fails if a test fails.
pub(crate) fn portable(run: &mut Run) -> Result<(), String> {
    // Tests in `torture` and `warnings` take long, or assume that the CPU time of a thread is
    // known.
    let mut args = vec!["test", "--locked", "--no-fail-fast", "--lib", "--test", "it"];
    for package in ["corewise-sync", "corewise-topology", "corewise-workqueue", "corewise-device"] {
        args.extend(["-p", package]);
    }
    // The package has neither a library nor such a test, so nothing of it is built.
    args.extend(backend::AS_IN_TESTS);
    let compiler = backend::compiler("portable", run.target())?;
    run.tests(&args, |command| {
        command.env("RUSTC_WORKSPACE_WRAPPER", compiler);
    })
}

/// Checks each target whose standard library is there, or that rustup can add. The others count as
/// skipped, and are named.
///
/// # Errors
///
/// Fails if the product doesn't compile for a target.
pub(crate) fn check(run: &mut Run) -> Result<(), String> {
    for (target, packages) in TARGETS {
        if !has(target)
            && run.command(Command::new("rustup").args(["target", "add", target])).is_err()
        {
            run.say(&format!(
                "{target}: skipped, as its standard library isn't here: `rustup target add {target}`"
            ));
            run.count_skipped();
            continue;
        }
        // The program is checked without its default features: TLS compiles C, and no C compiler
        // for these targets is here.
        let mut args = vec!["check", "--locked", "--no-default-features", "--target", target];
        for package in *packages {
            args.extend(["-p", package]);
        }
        run.cargo(&args, |command| {
            // None of these builds is ever run.
            command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        })?;
        run.count_passed();
    }
    Ok(())
}

/// Returns true if the toolchain has that target's standard library.
fn has(target: &str) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let said = Command::new(rustc).args(["--print", "target-libdir", "--target", target]).output();
    said.is_ok_and(|said| {
        said.status.success() && Path::new(String::from_utf8_lossy(&said.stdout).trim()).is_dir()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_toolchain_has_the_target_that_it_was_made_for_and_no_invented_one() {
        let own = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        assert!(has(&own) || cfg!(not(target_env = "gnu")));
        assert!(!has("corewise-no-such-target"));
    }
}
