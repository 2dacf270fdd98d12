//! The step that runs the libraries' tests under AddressSanitizer. AddressSanitizer finds uses of
//! freed memory, accesses out of bounds, double frees and, at the end of each program, leaks. The
//! step needs a nightly compiler.

use std::process::Command;

use crate::run::Run;

/// Crates whose tests run under AddressSanitizer. The program and the benchmarks run as separate
/// processes, the simulator switches stacks, and `fuzz` and `xtask` have no `unsafe` code.
const CRATES: &[&str] = &[
    "corewise-sync",
    "corewise-topology",
    "corewise-timeline",
    "corewise-kernel-log",
    "corewise-costs",
    "corewise-workqueue",
    "corewise-smp",
    "corewise-device",
    "corewise-blockmq",
    "corewise-drivers",
    "corewise-nbd",
    "corewise-object",
];

/// Tests that are skipped, each with its reason.
const KEPT_OFF: &[(&str, &str)] = &[
    (
        "a_high_stack_of_devices_completes_through_all_of_them",
        "its frames, which are several times as large here, are more than a stack has room for",
    ),
    ("a_storm_in_which_one_request_is_lost_is_found_to_stall", "it loses a request on purpose"),
    (
        "clients_that_do_their_worst_stay_within_the_memory_and_leave_it_behind",
        "it reads how much memory is resident, and AddressSanitizer keeps what is freed",
    ),
    ("small_writes_keep_little_of_what_came_with_them", "as the one before"),
];

/// Memory that tests leak on purpose, each with its reason.
const LEAKS: &str = "xtask/asan-leaks.txt";

/// Option that keeps locals on the stack of their thread: the address of one shows how much of the
/// stack is left.
const OPTIONS: &str = "detect_stack_use_after_return=0";

/// Stack size of a thread in bytes. Frames are several times as large as usual, and waits nest by
/// the bytes that are left.
const STACK: &str = "8388608";

/// Runs the step. A short run skips it, since it compiles all these crates once more.
///
/// # Errors
///
/// Fails if a test fails, or if AddressSanitizer finds an error.
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
    let leaks = run.root().join(LEAKS);
    let leaks = format!("suppressions={}:print_suppressions=0", leaks.display());
    let folder = run.target().join("asan");
    let mut cargo = Command::new("rustup");
    cargo.args(["run", "nightly", "cargo", "test", "--locked", "--no-fail-fast"]);
    // A target that is named keeps the sanitizer out of build scripts.
    cargo.args(["--lib", "--tests", "--target", &target]);
    CRATES.iter().for_each(|name| _ = cargo.args(["-p", name]));
    cargo.arg("--");
    KEPT_OFF.iter().for_each(|(test, _)| _ = cargo.args(["--skip", test]));
    // Cargo has set these for the other compiler.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_TARGET_DIR", folder).env("RUSTFLAGS", "-Zsanitizer=address");
    cargo.env("RUST_MIN_STACK", STACK).env("ASAN_OPTIONS", OPTIONS).env("LSAN_OPTIONS", leaks);
    run.brief_command(&mut cargo)
}

/// Returns the target of the nightly compiler, if there is such a compiler.
fn nightly() -> Option<String> {
    let said = Command::new("rustup").args(["run", "nightly", "rustc", "-vV"]).output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
}
