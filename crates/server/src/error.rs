//! The reason for which a server doesn't come up.

use std::fmt;

/// The error of a server that doesn't come up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The observer was told what is wrong.
    Reported,
    /// This says what is wrong, and perhaps what to do.
    Message {
        /// What is wrong.
        message: String,
        /// What to do about it.
        help: Option<String>,
    },
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Error {
        Error::Message { message: message.into(), help: None }
    }

    pub(crate) fn help(self, text: impl Into<String>) -> Error {
        match self {
            Error::Message { message, .. } => Error::Message { message, help: Some(text.into()) },
            Error::Reported => Error::Reported,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Reported => f.write_str("the server did not come up; its observer was told why"),
            Error::Message { message, help: None } => f.write_str(message),
            Error::Message { message, help: Some(help) } => write!(f, "{message}; {help}"),
        }
    }
}

impl std::error::Error for Error {}
