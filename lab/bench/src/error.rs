//! Errors that keep a workload from running.

use std::error::Error as StdError;
use std::io;

use corewise_device::Error as DeviceError;
use corewise_drivers::OpenError;
use corewise_smp::StartError;
use corewise_topology::TopologyError;
use corewise_workqueue::BuildError;
use thiserror::Error;

/// A workload couldn't be run. Nothing was measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A part of the workload couldn't be made.
    #[error("the workload's {what} can't be had")]
    Unusable {
        /// The part.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The machine couldn't be read, or a thread not pinned.
    #[error("the workload's CPUs can't be had")]
    Cpus(#[from] TopologyError),
    /// The queue couldn't be made.
    #[error("the workload's queue can't be had")]
    Queue(#[from] BuildError),
    /// The call targets couldn't be made.
    #[error("the workload's call targets can't be had")]
    Targets(#[from] StartError),
    /// The devices couldn't be made.
    #[error("the workload's devices can't be had")]
    Devices(#[from] DeviceError),
    /// A file couldn't be opened as a device.
    #[error("the workload's file can't be a device")]
    File(#[source] OpenError),
    /// The system gave no thread.
    #[error("the system gives the workload no thread")]
    Thread(#[source] io::Error),
    /// The program has no such runtime.
    #[error("no runtime '{runtime}' here")]
    NoRuntime {
        /// The runtime's name.
        runtime: String,
    },
    /// A thread of the workload panicked.
    #[error("a thread of the workload panicked")]
    Panicked,
    /// A call was answered wrongly, or not at all.
    #[error("a call was answered wrongly, or not at all")]
    WrongAnswer,
    /// A device wasn't shut down once, after all that depend on it.
    #[error("{device} wasn't shut down once, after all that depend on it")]
    WrongOrder {
        /// The device's name.
        device: String,
    },
    /// A workload needs at least one of these.
    #[error("the workload was asked to run with no {what}: at least one is needed")]
    Nothing {
        /// The thing that is missing.
        what: &'static str,
    },
}

/// Returns an error's text, with all its causes.
pub fn with_causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_of_an_error_is_told_once() {
        let error = BenchError::Unusable { what: "file", source: io::Error::other("no disk") };
        assert_eq!(with_causes(&error), "the workload's file can't be had: no disk");
    }
}
