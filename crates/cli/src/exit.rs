//! How a run ends: the errors that reach the user, and the only place that knows exit codes.

use std::io;
use std::process::ExitCode;

use corewise_server::control::health::HealthState;
use corewise_server::{Error, ErrorKind};

use crate::screen;

/// The run did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It has been said why.
    Reported,
    /// This says why, and perhaps what to do.
    Message { message: String, help: Option<String> },
    /// Writing to stdout failed.
    Stdout(io::Error),
    /// A server isn't ok, as has been printed.
    Unhealthy(HealthState),
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Failure {
        Failure::Message { message: message.into(), help: None }
    }

    pub(crate) fn help(self, text: impl Into<String>) -> Failure {
        match self {
            Failure::Message { message, .. } => {
                Failure::Message { message, help: Some(text.into()) }
            }
            other => other,
        }
    }

    /// What it says, in a line.
    pub(crate) fn words(&self) -> String {
        match self {
            Failure::Reported => "it failed".to_string(),
            Failure::Unhealthy(state) => format!("the server is {}", state.name()),
            Failure::Message { message, .. } => message.replace('\n', " "),
            Failure::Stdout(error) => error.to_string(),
        }
    }

    /// Says it on stderr, unless that was done.
    pub(crate) fn say(&self) {
        match self {
            Failure::Reported | Failure::Unhealthy(_) => {}
            Failure::Message { message, help } => {
                screen::error(format_args!("{message}"));
                if let Some(help) = help {
                    screen::help(format_args!("{help}"));
                }
            }
            Failure::Stdout(error) => {
                screen::error(format_args!("cannot write to stdout: {error}"));
            }
        }
    }
}

/// What `?` makes of a failed `write!`: the only I/O errors that are not given words on the way.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Stdout(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::new(format!("cannot write JSON: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (message, help) = (error.message().to_string(), error.help().map(str::to_string));
        match error.kind() {
            ErrorKind::Reported => Failure::Reported,
            _ => Failure::Message { message, help },
        }
    }
}

/// Says why a run failed, and turns its end into a code: 0 success, 1 failure; of `corewise health`
/// alone 3 degraded and 4 lost. Wrong usage, 2, is clap's, which ends the process before anything
/// has begun.
pub(crate) fn code(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) | Err(Failure::Unhealthy(HealthState::Ok)) => ExitCode::SUCCESS,
        // The reader had enough (`corewise topo | head`): nothing went wrong.
        Err(Failure::Stdout(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(Failure::Unhealthy(HealthState::Degraded)) => ExitCode::from(3),
        Err(Failure::Unhealthy(HealthState::Lost)) => ExitCode::from(4),
        Err(failure) => {
            failure.say();
            ExitCode::FAILURE
        }
    }
}
