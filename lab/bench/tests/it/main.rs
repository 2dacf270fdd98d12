//! The library and the program, as their users meet them.
#![allow(missing_docs)]

mod costs;
mod machine;
mod program;
mod tables;

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A folder of its own for one test.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the names in the folder, sorted. A run that leaves a temporary file behind leaves it
    /// here.
    fn list(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).expect("a readable folder");
        let names = entries.map(|entry| entry.expect("a readable entry").file_name());
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Runs the program in this folder to its end.
    fn bench<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_corewise-bench"));
        command.current_dir(self.path()).env("TMPDIR", self.path()).args(args);
        let output = command.output().expect("the program can be started");
        Ran {
            command: format!("{command:?}"),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The exit code and both outputs of a run. A failed test shows its `Display`.
struct Ran {
    command: String,
    /// `None`: a signal ended it.
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    #[track_caller]
    fn code(self, code: i32) -> Ran {
        assert!(self.code == Some(code), "expected exit code {code}\n{self}");
        self
    }

    #[track_caller]
    fn ok(self) -> Ran {
        self.code(0)
    }

    /// Checks that stdout has each of these.
    #[track_caller]
    fn says(self, texts: &[&str]) -> Ran {
        for text in texts {
            assert!(self.stdout.contains(text), "no {text:?} on stdout\n{self}");
        }
        self
    }

    /// Checks that stderr has each of these.
    #[track_caller]
    fn complains(self, texts: &[&str]) -> Ran {
        for text in texts {
            assert!(self.stderr.contains(text), "no {text:?} on stderr\n{self}");
        }
        self
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ran { command, code, stdout, stderr } = self;
        write!(f, "{command}\nexit code {code:?}\n--- stdout\n{stdout}--- stderr\n{stderr}---")
    }
}
