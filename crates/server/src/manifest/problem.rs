//! Problems of a manifest: one message that names file, line and device.

use std::fmt;
use std::path::Path;

use corewise::timeline::markup::is_invisible;

/// A place in the text. Both numbers count from 1; the default stands for no place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in that line.
    pub column: usize,
}

/// A value and the place where it is written. Equality compares the values alone, so a rearranged
/// manifest equals the old one.
#[derive(Clone, Debug)]
pub struct Located<T> {
    pub(crate) value: T,
    pub(crate) place: Position,
}

impl<T: PartialEq> PartialEq for Located<T> {
    fn eq(&self, other: &Located<T>) -> bool {
        self.value == other.value
    }
}

impl<T> Located<T> {
    /// Joins a value and its place.
    pub fn new(value: T, place: Position) -> Located<T> {
        Located { value, place }
    }
}

/// The table that a problem is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The manifest as a whole.
    Manifest,
    /// The `[server]` table.
    Server,
    /// A device by name, or by its number in the file (from 1) if it has none.
    Device(Result<String, usize>),
    /// An export by name, or by its number in the file (from 1) if it has none.
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

/// A problem with its place, subject and advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Place of the problem, if it is about a place in the text.
    pub(crate) place: Option<Position>,
    /// Table that the problem is about.
    pub(crate) subject: Subject,
    /// Message: what was asked and what was found.
    pub(crate) message: String,
    /// Advice.
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

    /// Displays `FILE:LINE:COLUMN: SUBJECT: MESSAGE`, and the help on a line of its own.
    pub fn display<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        DisplayProblem { problem: self, file }
    }
}

/// Returns the problem of a chosen name with an invisible character: a reader would take it for
/// another name.
pub(super) fn unseen(what: &str, at: &Located<String>, subject: &Subject) -> Option<Problem> {
    let hidden = at.value.chars().find(|c| is_invisible(*c))?;
    let message = format!("{what} has the invisible character U+{:04X}", u32::from(hidden));
    let help = "retype the text: characters that control, hide or turn text are refused";
    Some(Problem::new(at.place, subject.clone(), message).help(help))
}

/// Returns the value that a word stands for. For an unknown word, returns a problem that lists the
/// known ones after `wanted`.
pub(super) fn word<T: Copy>(
    at: &Located<String>,
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

/// Room of a socket address for a path, without the closing zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// Returns the reason why a socket can't have this path, or `None`.
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
