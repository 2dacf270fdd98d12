//! The tools of a step: runs commands, keeps their output, and counts the tests in it.

use crate::tally::Tally;
use crate::workspace;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running step.
pub(crate) struct Run {
    root: PathBuf,
    target: PathBuf,
    long: bool,
    /// Output of the step and its commands. Commands append to the file themselves.
    log: File,
    /// True if the output is shown while the step runs.
    live: bool,
    /// Counts of the step's tests.
    pub(crate) tally: Tally,
}

impl Run {
    /// Starts a step, whose log is a file of that name below the target folder.
    pub(crate) fn new(name: &str, long: bool, live: bool) -> Result<Run, String> {
        let root = workspace::root()?;
        let target = workspace::target(&root);
        let folder = target.join("steps");
        let path = folder.join(format!("{name}.log"));
        let log = std::fs::create_dir_all(&folder)
            // A new file, as a program that an earlier run left behind may still write to the old
            // one.
            .and_then(|()| if path.exists() { std::fs::remove_file(&path) } else { Ok(()) })
            .and_then(|()| File::options().read(true).append(true).create(true).open(&path))
            .map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        Ok(Run { root, target, long, log, live, tally: Tally::default() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Runs cargo in the root, after `adapt` has changed the command.
    pub(crate) fn cargo(
        &mut self,
        args: &[&str],
        adapt: impl FnOnce(&mut Command),
    ) -> Result<(), String> {
        // The cargo that runs this program, and so the same toolchain.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(args);
        if std::env::var_os("CARGO_TARGET_DIR").is_some() {
            // The path may be relative to the folder of the start, and cargo is started in the
            // root.
            command.env("CARGO_TARGET_DIR", &self.target);
        }
        adapt(&mut command);
        self.command(&mut command)
    }

    pub(crate) fn is_long(&self) -> bool {
        self.long
    }

    /// Counts a passed check that is no test of cargo's.
    pub(crate) fn count_passed(&mut self) {
        self.tally.passed += 1;
    }

    /// Counts a check that can't be made here.
    pub(crate) fn count_skipped(&mut self) {
        self.tally.skipped += 1;
    }

    /// Runs cargo for a step that runs tests. If there are none, something hides them, and that is
    /// a failure.
    pub(crate) fn tests(
        &mut self,
        args: &[&str],
        adapt: impl FnOnce(&mut Command),
    ) -> Result<(), String> {
        self.cargo(args, adapt)?;
        if self.tally == Tally::default() { Err("there were no tests".into()) } else { Ok(()) }
    }

    /// Runs a command in the root without input, keeps its output, and counts the tests in it.
    pub(crate) fn command(&mut self, command: &mut Command) -> Result<(), String> {
        self.output(command).map(|_| ())
    }

    /// Runs a command as `command` does, for tests that take no longer in a long run.
    pub(crate) fn brief_command(&mut self, command: &mut Command) -> Result<(), String> {
        let long = std::mem::take(&mut self.long);
        let done = self.command(command);
        self.long = long;
        done
    }

    /// Runs a command as `command` does, in another folder.
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

    /// Adds a line to the output of the step.
    pub(crate) fn say(&mut self, line: &str) {
        if self.live {
            println!("{line}");
        }
        // A log that can't be written stops no check.
        let _ = writeln!(self.log, "{line}");
    }

    /// Runs a command as `command` does, and returns its output.
    pub(crate) fn output(&mut self, command: &mut Command) -> Result<String, String> {
        let shown = show(command);
        self.say(&format!("$ {shown}"));
        let failed = |what: &str, e: std::io::Error| format!("{what} `{shown}`: {e}");
        let logs = || self.log.try_clone().map(Stdio::from);
        let (stdout, stderr) = logs()
            .and_then(|stdout| Ok((stdout, logs()?)))
            .map_err(|e| failed("cannot keep the output of", e))?;
        command.current_dir(&self.root).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        if self.long {
            command.env("COREWISE_LONG", "1");
        }
        let begun = self.log.seek(SeekFrom::End(0)).map_err(|e| failed("cannot keep", e))?;
        let mut child = command.spawn().map_err(|e| failed("cannot start", e))?;
        let status = if self.live { self.follow(&mut child, begun) } else { child.wait() }
            .map_err(|e| failed("cannot wait for", e))?;
        let said = self.since(begun).map_err(|e| failed("cannot read the output of", e))?;
        for tally in said.lines().filter_map(Tally::of_line) {
            self.tally += tally;
        }
        if status.success() { Ok(said) } else { Err(format!("`{shown}` ended with {status}")) }
    }

    /// Shows the child's output while the child runs.
    fn follow(&mut self, child: &mut Child, mut shown: u64) -> std::io::Result<ExitStatus> {
        loop {
            let ended = child.try_wait()?;
            print!("{}", self.since(shown)?);
            shown = self.log.stream_position()?;
            match ended {
                Some(status) => return Ok(status),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Returns the contents of the log from `place` on.
    pub(crate) fn since(&mut self, place: u64) -> std::io::Result<String> {
        let mut said = Vec::new();
        self.log.seek(SeekFrom::Start(place))?;
        self.log.read_to_end(&mut said)?;
        // A test may print bytes that are no text.
        Ok(String::from_utf8_lossy(&said).into_owned())
    }
}

/// Returns the command as a user would type it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_could_type_it() {
        let mut command = Command::new("/some/where/cargo");
        command.args(["test", "--test", "loom*"]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(show(&command), "RUSTFLAGS='--cfg loom' cargo test --test 'loom*'");
    }

    #[test]
    fn tests_that_a_command_reports_are_counted_and_its_failure_is_told() {
        let line = "test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured";
        let script = format!("echo '{line}'; echo why >&2; exit 9");
        for live in [false, true] {
            let mut run = Run::new(&format!("counted-{live}"), false, live).unwrap();
            let why = run.command(Command::new("sh").args(["-c", &script])).unwrap_err();
            assert!(why.contains("exit status: 9"), "{why}");
            assert_eq!(run.tally, Tally { passed: 2, failed: 1, skipped: 3 });
            let said = run.since(0).unwrap();
            assert!(said.starts_with("$ sh -c ") && said.ends_with("measured\nwhy\n"), "{said}");
        }
    }

    #[test]
    fn a_step_for_tests_that_runs_none_is_a_failure() {
        let mut run = Run::new("no-tests", false, false).unwrap();
        assert_eq!(run.tests(&["--version"], |_| {}).unwrap_err(), "there were no tests");
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure_and_no_panic() {
        let mut run = Run::new("no-program", false, false).unwrap();
        let why = run.command(&mut Command::new("corewise-no-such-program")).unwrap_err();
        assert!(why.starts_with("cannot start"), "{why}");
    }
}
