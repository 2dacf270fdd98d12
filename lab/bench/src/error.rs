//! What can keep a workload from running.

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
    /// What the workload is made of couldn't be had.
    #[error("the workload's {what} can't be had")]
    Unusable {
        /// Of the workload.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// So too.
    #[error("the workload's CPUs can't be had")]
    Cpus(#[from] TopologyError),
    /// So too.
    #[error("the workload's queue can't be had")]
    Queue(#[from] BuildError),
    /// So too.
    #[error("the workload's call targets can't be had")]
    Targets(#[from] StartError),
    /// So too.
    #[error("the workload's devices can't be had")]
    Devices(#[from] DeviceError),
    /// A file couldn't be opened as a device.
    #[error("the workload's file can't be a device")]
    File(#[source] OpenError),
    /// The system gave no thread.
    #[error("the system gives the workload no thread")]
    Thread(#[source] io::Error),
    /// A run isn't for a runtime of this program.
    #[error("no runtime '{runtime}' here")]
    NoRuntime {
        /// Its name.
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
        /// Its name.
        device: String,
    },
    /// A workload needs at least one of these.
    #[error("the workload was asked to run with no {what}: at least one is needed")]
    Nothing {
        /// What there was none of.
        what: &'static str,
    },
}
