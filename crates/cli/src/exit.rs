//! The end of a run: the errors that reach the user. No other module knows exit codes.

use std::io;
use std::process::ExitCode;

use corewise_server::control::health::HealthState;
use corewise_server::{Error, ErrorKind};

use crate::screen;

/// The run did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The run has printed the reason.
    Reported,
    /// The reason, and perhaps a remedy.
    Message { message: String, help: Option<String> },
    /// Writing to stdout failed.
    Stdout(io::Error),
    /// A server isn't ok. The run has printed its state.
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

    /// Returns the failure in one line.
    pub(crate) fn words(&self) -> String {
        match self {
            Failure::Reported => "it failed".to_string(),
            Failure::Unhealthy(state) => format!("the server is {}", state.name()),
            Failure::Message { message, .. } => message.replace('\n', " "),
            Failure::Stdout(error) => error.to_string(),
        }
    }

    /// Prints the failure on stderr, unless the run has done so.
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

/// Converts the error of a failed `write!` to stdout. All other I/O errors get words where they
/// occur.
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

/// Prints why a run failed and returns its exit code: 0 success, 1 failure; for `corewise health`
/// also 3 degraded and 4 lost. Code 2, wrong usage, is clap's, which ends the process before a run
/// begins.
pub(crate) fn code(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) | Err(Failure::Unhealthy(HealthState::Ok)) => ExitCode::SUCCESS,
        // The reader has gone (`corewise topo | head`), which is no failure.
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
