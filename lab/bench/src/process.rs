//! Runs in processes of their own.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use corewise_sync::Parker;
use rustix::process::{Pid, Signal, kill_process};

use crate::{Job, Line};

/// A program that runs jobs.
#[derive(Debug, Clone)]
pub struct Program {
    /// The file to start.
    pub path: PathBuf,
    /// Arguments before the job's words.
    pub arguments: Vec<OsString>,
    /// Variables of its environment, beside those that it inherits.
    pub environment: Vec<(OsString, OsString)>,
}

/// An error of a run that printed no line, with the run's name, the reason, and the end of its
/// standard error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(String);

/// Bytes of the standard error in a message.
const SHOWN: usize = 2_000;

impl Program {
    /// Creates a program without arguments of its own.
    pub fn new(path: impl Into<PathBuf>) -> Program {
        Program { path: path.into(), arguments: Vec::new(), environment: Vec::new() }
    }

    /// Adds an argument that comes before the job's words.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Program {
        self.arguments.push(argument.into());
        self
    }

    /// Runs a job, and waits for it. After `limit` it is killed.
    ///
    /// # Errors
    /// The program couldn't be started, failed, took too long, or printed no line.
    pub fn run(&self, job: &Job, limit: Duration) -> Result<Line, RunError> {
        let failed = |why: String, said: &[u8]| {
            let said = String::from_utf8_lossy(said);
            let end = said.len().saturating_sub(SHOWN)..;
            let end = end.into_iter().find(|at| said.is_char_boundary(*at)).unwrap_or(0);
            let text = format!("the run of {} failed: {why}\n{}", job.name(), &said[end..]);
            RunError(text.trim_end().to_owned())
        };
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).args(job.to_words()).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            failed(format!("{} can't be started: {error}", self.path.display()), &[])
        })?;
        let pid = Pid::from_child(&child);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let over = Parker::new();
        let tell = over.unparker();
        let (output, said, late) = thread::scope(|scope| {
            // The child isn't reaped before the guard has ended, so the process id is still its
            // own.
            let guard = scope.spawn(move || {
                let late = !over.park_timeout(limit);
                if late {
                    let _ = kill_process(pid, Signal::KILL);
                }
                late
            });
            let said = scope.spawn(move || read(stderr));
            let output = read(stdout);
            tell.unpark();
            (output, said.join().unwrap_or_default(), guard.join().unwrap_or(false))
        });
        let status = child.wait().map_err(|error| failed(error.to_string(), &said))?;
        if late {
            return Err(failed(format!("it took longer than {} s", limit.as_secs()), &said));
        }
        if !status.success() {
            return Err(failed(format!("it ended with {status}"), &said));
        }
        Line::last_of(&String::from_utf8_lossy(&output)).map_err(|why| failed(why, &said))
    }
}

/// Reads all bytes of a pipe, if there is one.
fn read(from: Option<impl Read>) -> Vec<u8> {
    let mut all = Vec::new();
    if let Some(mut from) = from {
        // After an error only the bytes before it are left.
        let _ = from.read_to_end(&mut all);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    fn run(script: &str, limit: Duration) -> Result<Line, RunError> {
        let job = Job::plain(&crate::workqueue::BENCH, "idle", "shell");
        let mut shell = Program::new("/bin/sh").argument("-c").argument(script).argument("sh");
        shell.environment.push(("CPU_SECONDS".into(), "7".into()));
        shell.run(&job, limit)
    }

    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn a_run_gets_its_words_and_its_line_is_read() {
        let print = r#"echo warm; echo "{\"case\":\"${1#case=}\",\"runtime\":\"${2#runtime=}\",\"metrics\":{\"cpu_seconds\":$CPU_SECONDS}}""#;
        let line = run(print, LONG).unwrap();
        assert_eq!((line.case.as_str(), line.runtime.as_str()), ("idle", "shell"));
        assert_eq!(line.metrics["cpu_seconds"], 7.0);
    }

    #[test]
    fn a_failed_run_reports_its_reason() {
        let error = run("echo because >&2; exit 3", LONG).unwrap_err().to_string();
        assert!(error.contains("idle on shell") && error.contains("3"), "{error}");
        assert!(error.contains("because"), "{error}");
        assert!(run("true", LONG).unwrap_err().to_string().contains("no line"));
        let error = run("exec sleep 1000", Duration::from_millis(1)).unwrap_err().to_string();
        assert!(error.contains("longer"), "{error}");
        let none = Program::new("/nowhere/program");
        let job = Job::plain(&crate::workqueue::BENCH, "idle", "x");
        assert!(none.run(&job, LONG).unwrap_err().to_string().contains("/nowhere/program"));
    }
}
