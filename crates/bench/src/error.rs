//! What can keep a workload from running.

use std::fmt;

use corewise_blockmq::drivers::OpenError;
use corewise_device::Error as DeviceError;
use corewise_smp::StartError;
use corewise_topology::TopologyError;
use corewise_workqueue::BuildError;

/// A workload couldn't be run. Nothing was measured.
#[derive(Debug)]
#[non_exhaustive]
pub enum BenchError {
    /// The machine couldn't be read, or a thread not pinned.
    Topology(TopologyError),
    /// A workqueue couldn't be built.
    Workqueue(BuildError),
    /// The call targets couldn't be started.
    Smp(StartError),
    /// A device manager refused something.
    Device(DeviceError),
    /// A file couldn't be opened as a device.
    File(OpenError),
    /// The system failed to do something else.
    System {
        /// What was being done.
        step: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// The system gave no thread.
    Thread(std::io::Error),
    /// A thread of the workload panicked.
    Panicked,
    /// A call was answered wrongly, or not at all.
    WrongAnswer,
    /// A device wasn't shut down once, after all that depend on it.
    WrongOrder {
        /// Its name.
        device: String,
    },
    /// A workload needs at least one of these.
    Nothing {
        /// What there was none of.
        what: &'static str,
    },
}

impl BenchError {
    pub(crate) fn system(step: &'static str, source: std::io::Error) -> BenchError {
        BenchError::System { step, source }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Topology(_) => f.write_str("the workload's CPUs can't be used as asked"),
            BenchError::Workqueue(_) => f.write_str("the workload's queue can't be built"),
            BenchError::Smp(_) => f.write_str("the workload's call targets can't be started"),
            BenchError::Device(_) => f.write_str("the workload's devices can't be used as asked"),
            BenchError::File(_) => f.write_str("the workload's file can't be a device"),
            BenchError::System { step, .. } => write!(f, "{step} failed"),
            BenchError::Thread(_) => f.write_str("the system gives the workload no thread"),
            BenchError::Panicked => f.write_str("a thread of the workload panicked"),
            BenchError::WrongAnswer => f.write_str("a call was answered wrongly, or not at all"),
            BenchError::WrongOrder { device } => {
                write!(f, "{device} wasn't shut down once, after all that depend on it")
            }
            BenchError::Nothing { what } => {
                write!(f, "the workload was asked to run with no {what}: at least one is needed")
            }
        }
    }
}

impl std::error::Error for BenchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BenchError::Topology(error) => Some(error),
            BenchError::Workqueue(error) => Some(error),
            BenchError::Smp(error) => Some(error),
            BenchError::Device(error) => Some(error),
            BenchError::File(error) => Some(error),
            BenchError::System { source: error, .. } | BenchError::Thread(error) => Some(error),
            BenchError::Panicked
            | BenchError::WrongAnswer
            | BenchError::WrongOrder { .. }
            | BenchError::Nothing { .. } => None,
        }
    }
}

impl From<TopologyError> for BenchError {
    fn from(error: TopologyError) -> Self {
        BenchError::Topology(error)
    }
}

impl From<BuildError> for BenchError {
    fn from(error: BuildError) -> Self {
        BenchError::Workqueue(error)
    }
}

impl From<DeviceError> for BenchError {
    fn from(error: DeviceError) -> Self {
        BenchError::Device(error)
    }
}

impl From<StartError> for BenchError {
    fn from(error: StartError) -> Self {
        BenchError::Smp(error)
    }
}
