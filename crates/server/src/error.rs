//! The error of a server that doesn't come up, or of a change that isn't made.

use std::fmt;

/// The kind of an error, for a program that decides by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server did not come up. Its observer has the reason.
    Reported,
    /// The server can't come up, a manifest can't be used, or a change hangs and goes on.
    Failed,
    /// Another change is being made. Try again when it is done.
    Busy,
    /// The server isn't up yet, or ends.
    NotUp,
    /// The change was refused, and nothing was changed.
    Refused,
}

/// The error of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    help: Option<String>,
}

impl Error {
    pub(crate) fn of(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), help: None }
    }

    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error::of(ErrorKind::Failed, message)
    }

    pub(crate) fn refused(why: impl Into<String>) -> Error {
        Error::of(ErrorKind::Refused, why)
    }

    pub(crate) fn reported() -> Error {
        let message = "the server did not come up; its observer was told why";
        Error::of(ErrorKind::Reported, message)
    }

    pub(crate) fn with_help(self, text: impl Into<String>) -> Error {
        Error { help: Some(text.into()), ..self }
    }

    /// Returns the kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the problem in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns advice.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

/// Creates an error from the reason for which a change is refused.
impl From<String> for Error {
    fn from(why: String) -> Error {
        Error::refused(why)
    }
}

/// Creates an error from the reason for which a change is refused.
impl From<&str> for Error {
    fn from(why: &str) -> Error {
        Error::refused(why)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.help {
            None => f.write_str(&self.message),
            Some(help) => write!(f, "{}; {help}", self.message),
        }
    }
}

impl std::error::Error for Error {}
