//! What a device manager refuses to do.

use crate::GraphError;
use corewise_sync::text;
use corewise_workqueue::BuildError;
use std::fmt;

/// Why a [`DeviceManager`](crate::DeviceManager) did not do what it was asked. A device that fails
/// is no such error: it stands in the report.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Declarations are at fault, each as said; nothing was probed.
    Rejected(Vec<GraphError>),
    /// The devices are being shut down, or are down: none can be added.
    ShuttingDown,
    /// Another bring-up is in progress.
    Busy,
    /// A driver of that name is registered already.
    DuplicateDriver(String),
    /// No driver of that name is registered.
    NoSuchDriver(String),
    /// There is no device of that name.
    NoSuchDevice(String),
    /// The device is not up.
    NotUp(String),
    /// The supplier is the consumer's parent: that is no link that can be taken away.
    LinkToParent {
        /// The consumer.
        device: String,
        /// The supplier.
        parent: String,
    },
    /// A driver, callback or observer of this manager asked for something that waits for devices: it
    /// might wait for itself.
    InsideProbe,
    /// The probe's context was made without a manager, for a test.
    NoManager,
    /// The queue for device work could not be made.
    Queue(BuildError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Rejected(faults) => {
                for (i, fault) in faults.iter().enumerate() {
                    if i > 0 {
                        f.write_str("\n")?;
                    }
                    fault.fmt(f)?;
                }
                Ok(())
            }
            Error::ShuttingDown => f.write_str(
                "the devices are down, or are being shut down; make a new device manager to bring \
                 up devices again",
            ),
            Error::Busy => f.write_str(
                "another bring-up is in progress; wait for its end, or bring up all devices \
                 together",
            ),
            Error::DuplicateDriver(name) => {
                let name = text::name(name);
                write!(f, "a driver named \"{name}\" is registered already; choose another name")
            }
            Error::NoSuchDriver(name) => {
                let name = text::name(name);
                write!(
                    f,
                    "no driver named \"{name}\" is registered; register it, or correct the name"
                )
            }
            Error::NoSuchDevice(name) => {
                let name = text::name(name);
                write!(f, "there is no device \"{name}\"; add it, or correct the name")
            }
            Error::NotUp(name) => {
                let name = text::name(name);
                write!(
                    f,
                    "device \"{name}\" is not up, so a device that is up cannot depend on it; bind \
                     \"{name}\" first, or unbind the other"
                )
            }
            Error::LinkToParent { device, parent } => {
                let (device, parent) = (text::name(device), text::name(parent));
                write!(
                    f,
                    "\"{parent}\" is the parent of \"{device}\", and a device keeps its parent; remove \
                     \"{device}\", and add it with another parent"
                )
            }
            Error::InsideProbe => f.write_str(
                "a driver, callback or observer of this device manager called a function that \
                 waits for devices, and so perhaps for itself; call it from another thread, or \
                 later",
            ),
            Error::NoManager => f.write_str(
                "the context of this probe was made without a device manager, so no device can be \
                 added; have a manager probe the device",
            ),
            Error::Queue(error) => write!(f, "cannot create the queue for device work: {error}"),
        }
    }
}

/// The text has the cause's, so there is no source: a report of both would have it twice.
impl std::error::Error for Error {}
