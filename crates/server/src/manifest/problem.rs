//! What is wrong with a manifest, and where: one message that names file, line and device.

use std::fmt;
use std::path::Path;

use corewise::timeline::markup::is_invisible;

/// A place in the text; both numbers count from 1. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in that line.
    pub column: usize,
}

/// A value and the place where it is written. Two are equal where their values are: a manifest that
/// was rearranged says what it said before.
#[derive(Clone, Debug)]
pub struct At<T> {
    pub(crate) value: T,
    pub(crate) place: Position,
}

impl<T: PartialEq> PartialEq for At<T> {
    fn eq(&self, other: &At<T>) -> bool {
        self.value == other.value
    }
}

impl<T> At<T> {
    /// Joins a value and its place.
    pub fn new(value: T, place: Position) -> At<T> {
        At { value, place }
    }
}

/// Whom a problem is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The manifest as a whole.
    Manifest,
    /// The `[server]` table.
    Server,
    /// A device by name, or by its number in the file (from 1) where it has none.
    Device(Result<String, usize>),
    /// An export by name, or by its number in the file (from 1) where it has none.
    Export(Result<String, usize>),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Manifest => write!(f, "manifest"),
            Subject::Server => write!(f, "[server]"),
            Subject::Device(Ok(name)) => write!(f, "device '{name}'"),
            Subject::Device(Err(number)) => write!(f, "device {number} (it has no name)"),
            Subject::Export(Ok(name)) => write!(f, "export '{name}'"),
            Subject::Export(Err(number)) => write!(f, "export {number}"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, if it is about a place in the text.
    pub(crate) place: Option<Position>,
    /// Whom it is about.
    pub(crate) subject: Subject,
    /// What was asked and what was found.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) help: Option<String>,
}

impl Problem {
    pub(crate) fn new(place: Position, subject: Subject, message: impl Into<String>) -> Problem {
        Problem { place: Some(place), subject, message: message.into(), help: None }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    /// `FILE:LINE:COLUMN: SUBJECT: MESSAGE`, and the help on a line of its own.
    pub fn display<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        DisplayProblem { problem: self, file }
    }
}

/// What is wrong with a name that is chosen: somebody who reads it sees another one.
pub(super) fn unseen(what: &str, at: &At<String>, subject: &Subject) -> Option<Problem> {
    let hidden = at.value.chars().find(|c| is_invisible(*c))?;
    let message =
        format!("{what} has the character U+{:04X}, which nobody sees", u32::from(hidden));
    let help = "type it anew: characters that control, hide or turn text are refused";
    Some(Problem::new(at.place, subject.clone(), message).help(help))
}

/// What a word stands for; where it is none of those that are known, the problem, with `wanted` in
/// front of them.
pub(super) fn word<T: Copy>(
    at: &At<String>,
    key: &str,
    wanted: &str,
    known: &[(&str, T)],
    subject: &Subject,
) -> Result<T, Problem> {
    let found = known.iter().find(|(word, _)| *word == at.value).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        let message = format!("unknown {key} '{}'", at.value);
        Problem::new(at.place, subject.clone(), message)
            .help(format!("{wanted}: {}", words.join(", ")))
    })
}

/// What a socket address has room for, less the closing zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// Why a socket can't have this path.
pub fn too_long(path: &Path) -> Option<String> {
    let len = path.as_os_str().len();
    (len > LONGEST_SOCKET_PATH).then(|| {
        format!(
            "a socket's path must have at most {LONGEST_SOCKET_PATH} bytes, but this one has {len}: {}",
            path.display()
        )
    })
}

struct DisplayProblem<'a> {
    problem: &'a Problem,
    file: &'a str,
}

impl fmt::Display for DisplayProblem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { place, subject, message, help } = self.problem;
        write!(f, "{}:", self.file)?;
        if let Some(place) = place {
            write!(f, "{}:{}:", place.line, place.column)?;
        }
        if *subject != Subject::Manifest {
            write!(f, " {subject}:")?;
        }
        write!(f, " {message}")?;
        if let Some(help) = help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}
