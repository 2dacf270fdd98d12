//! The step that runs the crates' tests under AddressSanitizer, which finds uses of freed memory, overflows, and what nobody
//! frees. It needs a nightly compiler.

use std::process::Command;

use crate::run::Run;

/// The crates whose tests run so: all libraries that have `unsafe` code or threads, and what stands on them.
const CRATES: &[&str] = &[
    "corewise-sync",
    "corewise-topology",
    "corewise-timeline",
    "corewise-costs",
    "corewise-workqueue",
    "corewise-smp",
    "corewise-device",
    "corewise-blockmq",
    "corewise-nbd",
    "corewise-object",
];

/// Tests that are kept off, by a part of their names, and why.
const KEPT_OFF: &[(&str, &str)] = &[];

/// The step: in a long run alone, since it compiles everything once more.
///
/// # Errors
///
/// A test fails, or AddressSanitizer has found something.
pub(crate) fn check(run: &mut Run) -> Result<(), String> {
    if !run.is_long() {
        run.say("only a long run has these");
        return Ok(());
    }
    let Some(target) = nightly() else {
        run.say("skipped, as no nightly compiler is here: `rustup toolchain install nightly`");
        run.count_skipped();
        return Ok(());
    };
    for (test, why) in KEPT_OFF {
        run.say(&format!("kept off: {test}: {why}"));
    }
    let mut cargo = Command::new("rustup");
    cargo.args(["run", "nightly", "cargo", "test", "--locked", "--no-fail-fast", "--lib", "--tests"]);
    cargo.args(["--target", &target]);
    for name in CRATES {
        cargo.args(["-p", name]);
    }
    cargo.arg("--");
    for (test, _) in KEPT_OFF {
        cargo.args(["--skip", test]);
    }
    let folder = run.target().join("asan");
    // What cargo has told us is the other compiler's.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN", "RUSTC_WORKSPACE_WRAPPER"] {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_TARGET_DIR", folder).env("RUSTFLAGS", "-Zsanitizer=address");
    run.command(&mut cargo)
}

/// The target that the nightly compiler is for, where there is one.
fn nightly() -> Option<String> {
    let said = Command::new("rustup").args(["run", "nightly", "rustc", "-vV"]).output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
}
