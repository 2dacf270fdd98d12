//! Runs the steps, shows what they say, and adds it all up.

use crate::args::Args;
use crate::steps::{self, Step};
use crate::tally::Tally;
use crate::workspace;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the steps share.
pub(crate) struct Run {
    root: PathBuf,
    target: PathBuf,
    long: bool,
    /// The tests of the step that is running.
    tally: Tally,
}

impl Run {
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Runs cargo in the root, after `adapt` had its say on the environment.
    pub(crate) fn cargo(
        &mut self,
        args: &[&str],
        adapt: impl FnOnce(&mut Command),
    ) -> Result<(), String> {
        // The cargo that runs us, and so the same toolchain.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(args);
        if std::env::var_os("CARGO_TARGET_DIR").is_some() {
            // It may be relative to where we were started, and cargo is started in the root.
            command.env("CARGO_TARGET_DIR", &self.target);
        }
        adapt(&mut command);
        self.command(&mut command)
    }

    pub(crate) fn is_long(&self) -> bool {
        self.long
    }

    /// A check of the step that is no test of cargo's passed.
    pub(crate) fn count_passed(&mut self) {
        self.tally.passed += 1;
    }

    /// A check of the step can't be made here.
    pub(crate) fn count_skipped(&mut self) {
        self.tally.skipped += 1;
    }

    /// Like `cargo`, for a step that is there to run tests: when there were none, something hides
    /// them, and that is a failure.
    pub(crate) fn tests(
        &mut self,
        args: &[&str],
        adapt: impl FnOnce(&mut Command),
    ) -> Result<(), String> {
        self.cargo(args, adapt)?;
        if self.tally == Tally::default() { Err("there were no tests".into()) } else { Ok(()) }
    }

    /// Runs a command in the root without input, shows what it prints, and counts the tests in it.
    pub(crate) fn command(&mut self, command: &mut Command) -> Result<(), String> {
        self.output(command).map(|_| ())
    }

    /// Like `command`, in another folder.
    pub(crate) fn command_in(
        &mut self,
        folder: &Path,
        command: &mut Command,
    ) -> Result<(), String> {
        let root = std::mem::replace(&mut self.root, folder.to_path_buf());
        let done = self.command(command);
        self.root = root;
        done
    }

    /// Like `command`; gives back what it printed on its standard output.
    pub(crate) fn output(&mut self, command: &mut Command) -> Result<String, String> {
        let shown = show(command);
        println!("$ {shown}");
        command.current_dir(&self.root).stdin(Stdio::null()).stdout(Stdio::piped());
        if self.long {
            command.env("COREWISE_LONG", "1");
        }
        let failed = |what: &str, e: std::io::Error| format!("{what} `{shown}`: {e}");
        let mut child = command.spawn().map_err(|e| failed("cannot start", e))?;
        let pipe = child.stdout.take().expect("it was asked for a line above");
        let mut said = String::new();
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        // By bytes, as a test may print what is not text.
        while pipe.read_until(b'\n', &mut line).map_err(|e| failed("cannot read from", e))? > 0 {
            let text = String::from_utf8_lossy(&line);
            print!("{text}");
            if let Some(tally) = Tally::of_line(&text) {
                self.tally += tally;
            }
            said.push_str(&text);
            line.clear();
        }
        let status = child.wait().map_err(|e| failed("cannot wait for", e))?;
        if status.success() { Ok(said) } else { Err(format!("`{shown}` ended with {status}")) }
    }
}

/// The command as one could type it.
fn show(command: &Command) -> String {
    let mut words: Vec<String> = Vec::new();
    for (name, value) in command.get_envs() {
        let value = value.map(|v| v.to_string_lossy()).unwrap_or_default();
        words.push(format!("{}={}", name.to_string_lossy(), quote(&value)));
    }
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    words.push(program.to_string_lossy().into_owned());
    words.extend(command.get_args().map(|arg| quote(&arg.to_string_lossy())));
    words.join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

/// How one step went.
struct Done {
    name: &'static str,
    took: Duration,
    tally: Tally,
    failed: Option<String>,
}

/// Runs what `args` asks for. True: nothing failed.
pub(crate) fn all(args: &Args) -> Result<bool, String> {
    let root = workspace::root()?;
    let target = workspace::target(&root);
    let mut run = Run { root, target, long: args.long, tally: Tally::default() };
    let begun = Instant::now();
    let mut done: Vec<Done> = Vec::new();
    for step in steps::ALL.iter().filter(|step| args.wants(step.name)) {
        done.push(one(&mut run, step));
        if step.needed_by_all && done.last().is_some_and(|d| d.failed.is_some()) {
            println!("\nThe steps after `{}` were not run.", step.name);
            break;
        }
    }
    Ok(sum_up(&done, begun.elapsed()))
}

fn one(run: &mut Run, step: &Step) -> Done {
    println!("\n=== {}: {} ===", step.name, step.what);
    run.tally = Tally::default();
    let begun = Instant::now();
    let failed = (step.check)(run).err();
    let took = begun.elapsed();
    let mut tally = run.tally;
    if let Some(why) = &failed {
        println!("{why}");
        // A failure that no test counted: a lint, a build, a crash.
        tally.failed = tally.failed.max(1);
    }
    let word = if failed.is_some() { "FAILED" } else { "ok" };
    println!("=== {}: {word} in {} ===", step.name, seconds(took));
    let _ = std::io::stdout().flush();
    Done { name: step.name, took, tally, failed }
}

/// Prints a line for each step, then what failed, then the counts alone on the last line.
fn sum_up(done: &[Done], took: Duration) -> bool {
    let mut sum = Tally::default();
    println!();
    for d in done {
        sum += d.tally;
        let word = if d.failed.is_some() { "FAILED" } else { "ok" };
        println!("{:<9} {word:<6} {:>8}  {}", d.name, seconds(d.took), d.tally);
    }
    println!("{:<9} {:<6} {:>8}", "all", "", seconds(took));
    for d in done {
        if let Some(why) = &d.failed {
            println!("failed: {}: {why}", d.name);
        }
    }
    println!("{sum}");
    sum.failed == 0
}

fn seconds(d: Duration) -> String {
    match d.as_secs() {
        s if s < 60 => format!("{:.1} s", d.as_secs_f64()),
        s => format!("{} m {:02} s", s / 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let root = workspace::root().unwrap();
        Run { target: workspace::target(&root), root, long: false, tally: Tally::default() }
    }

    fn step(check: fn(&mut Run) -> Result<(), String>) -> Step {
        Step { name: "fmt", what: "a made-up step", check, needed_by_all: false }
    }

    #[test]
    fn a_command_is_shown_as_one_could_type_it() {
        let mut command = Command::new("/some/where/cargo");
        command.args(["test", "--test", "loom*"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(show(&command), "RUSTFLAGS='--cfg loom' cargo test --test 'loom*'");
    }

    #[test]
    fn tests_that_a_command_reports_are_counted_and_its_failure_is_told() {
        let script =
            "echo 'test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured'; exit 9";
        let mut run = run();
        let why = run.command(Command::new("sh").args(["-c", script])).unwrap_err();
        assert!(why.contains("exit status: 9"), "{why}");
        assert_eq!(run.tally, Tally { passed: 2, failed: 1, skipped: 3 });
    }

    #[test]
    fn a_step_for_tests_that_runs_none_is_a_failure() {
        let why = run().tests(&["--version"], |_| {}).unwrap_err();
        assert_eq!(why, "there were no tests");
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure_and_no_panic() {
        let why = run().command(&mut Command::new("corewise-no-such-program")).unwrap_err();
        assert!(why.starts_with("cannot start"), "{why}");
    }

    #[test]
    fn a_step_that_fails_without_a_failed_test_counts_as_one_failure() {
        let done = one(&mut run(), &step(|_| Err("no".into())));
        assert_eq!(done.tally, Tally { failed: 1, ..Tally::default() });
        assert!(!sum_up(&[done], Duration::ZERO));
        let done = one(&mut run(), &step(|_| Ok(())));
        assert!(sum_up(&[done], Duration::ZERO));
    }
}
