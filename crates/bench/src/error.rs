//! What can keep a workload from running.

use std::error::Error;
use std::{fmt, io};

use corewise_blockmq::drivers::OpenError;
use corewise_device::Error as DeviceError;
use corewise_smp::StartError;
use corewise_topology::TopologyError;
use corewise_workqueue::BuildError;

/// A workload couldn't be run. Nothing was measured.
#[derive(Debug)]
#[non_exhaustive]
pub enum BenchError {
    /// What the workload is made of couldn't be had.
    Unusable {
        /// Of the workload.
        what: &'static str,
        /// Why not.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file couldn't be opened as a device.
    File(OpenError),
    /// The system gave no thread.
    Thread(io::Error),
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
    pub(crate) fn unusable(what: &'static str, source: io::Error) -> BenchError {
        BenchError::Unusable { what, source: source.into() }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Unusable { what, .. } => write!(f, "the workload's {what} can't be had"),
            BenchError::File(_) => f.write_str("the workload's file can't be a device"),
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

impl Error for BenchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BenchError::Unusable { source, .. } => Some(&**source),
            BenchError::File(error) => Some(error),
            BenchError::Thread(error) => Some(error),
            _ => None,
        }
    }
}

macro_rules! unusable {
    ($($error:ty: $what:literal,)*) => {$(
        impl From<$error> for BenchError {
            fn from(error: $error) -> Self {
                BenchError::Unusable { what: $what, source: error.into() }
            }
        }
    )*};
}
unusable! {
    TopologyError: "CPUs",
    BuildError: "queue",
    StartError: "call targets",
    DeviceError: "devices",
}
