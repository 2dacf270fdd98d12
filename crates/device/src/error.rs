//! Errors of managers, probes and shutdown callbacks, and panics of user code as messages.

use crate::graph::GraphError;
use corewise_sync::{panics, text};
use corewise_workqueue::BuildError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The reason why a call of a [`DeviceManager`](crate::DeviceManager) failed. A device that fails
/// is no such error: the report lists it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The declarations are at fault, each as listed; nothing was probed.
    Rejected(Vec<GraphError>),
    /// The devices are being shut down, or are down: none can be added.
    ShuttingDown,
    /// Another bring-up is in progress.
    Busy,
    /// A driver of that name is registered already.
    DuplicateDriver(String),
    /// The named driver is not registered.
    NoSuchDriver(String),
    /// The named device doesn't exist.
    NoSuchDevice(String),
    /// The device is not up.
    NotUp(String),
    /// The supplier is the consumer's parent: such a link can't be taken away.
    LinkToParent {
        /// The consumer.
        device: String,
        /// The supplier.
        parent: String,
    },
    /// A driver, callback or observer of this manager made a call that waits for devices: it might
    /// wait for itself.
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

/// The text includes the cause's, so there is no source: a report of both would print it twice.
impl std::error::Error for Error {}

/// The reason why a probe did not bind its device.
#[derive(Clone, PartialEq, Eq)]
pub struct ProbeError {
    kind: ProbeErrorKind,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeErrorKind {
    Failed,
    NoDevice,
    Deferred,
    TimedOut,
    Panicked,
}

impl ProbeError {
    /// Creates a failure of the probe. Say what was asked, what was found, and what to do; the
    /// reporter adds the device's name. Fits `map_err(ProbeError::failed)`.
    pub fn failed(message: impl fmt::Display) -> ProbeError {
        ProbeError { kind: ProbeErrorKind::Failed, message: message.to_string() }
    }

    /// Creates the error for a device that isn't there: the next driver that matches is asked. It
    /// is a failure like any other, but is not logged as a warning: the caller may have been
    /// guessing.
    pub fn no_device(message: impl fmt::Display) -> ProbeError {
        ProbeError { kind: ProbeErrorKind::NoDevice, message: message.to_string() }
    }

    pub(crate) fn panicked(message: String) -> ProbeError {
        ProbeError { kind: ProbeErrorKind::Panicked, message }
    }

    /// Creates a deferral: the device needs something that is not there yet and that its
    /// declaration doesn't name. The driver is called again when some other device has been bound.
    /// Say what is missing.
    ///
    /// Name all needs that you can in the declaration: then the device isn't probed in vain. See
    /// also [`ProbeContext::defer`](crate::ProbeContext::defer), which gives up after the deferral
    /// timeout.
    pub fn defer(reason: impl fmt::Display) -> ProbeError {
        ProbeError { kind: ProbeErrorKind::Deferred, message: reason.to_string() }
    }

    pub(crate) fn timed_out(after: std::time::Duration) -> ProbeError {
        let message = format!(
            "the probe did not end within {after:.3?}, so the bring-up continued without the \
             device; raise the timeout, or find out what the probe waits for"
        );
        ProbeError { kind: ProbeErrorKind::TimedOut, message }
    }

    /// Returns true if the probe was past its deadline and was given up. It may have continued.
    pub fn is_timeout(&self) -> bool {
        self.kind == ProbeErrorKind::TimedOut
    }

    pub(crate) fn kind(&self) -> ProbeErrorKind {
        self.kind
    }

    /// Returns true if the driver asked to be called again later.
    pub(crate) fn is_deferral(&self) -> bool {
        self.kind == ProbeErrorKind::Deferred
    }

    /// Returns true if there is no such device.
    pub(crate) fn is_no_device(&self) -> bool {
        self.kind == ProbeErrorKind::NoDevice
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ProbeErrorKind::Panicked => {
                write!(f, "the probe panicked: {}", text::message(&self.message))
            }
            _ => text::message(&self.message).fmt(f),
        }
    }
}

/// The message is bounded, and is not escaped anew at each level of errors: see [`text::message`].
impl fmt::Debug for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = text::message(&self.message);
        f.debug_struct("ProbeError").field("kind", &self.kind).field("message", &message).finish()
    }
}

impl std::error::Error for ProbeError {}

/// The reason why a shutdown callback failed. It is recorded, and stops nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct ShutdownError(String);

impl ShutdownError {
    /// Creates an error; say what went wrong, and what may be lost. Fits
    /// `map_err(ShutdownError::new)`.
    pub fn new(message: impl fmt::Display) -> ShutdownError {
        ShutdownError(message.to_string())
    }

    pub(crate) fn dropped() -> ShutdownError {
        ShutdownError::new(
            "the driver dropped the completion handle of the shutdown without a result; finish \
             the completion on every path",
        )
    }
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::message(&self.0).fmt(f)
    }
}

/// Formats as [`ProbeError`] does.
impl fmt::Debug for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShutdownError").field(&text::message(&self.0)).finish()
    }
}

impl std::error::Error for ShutdownError {}

/// A device whose shutdown callback failed, panicked or was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallbackFailure {
    /// The device's name.
    pub device: String,
    /// The reason.
    pub error: ShutdownError,
}

impl fmt::Display for CallbackFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", text::name(&self.device), self.error)
    }
}

/// Calls user code. If it panics, the panic is caught and its message returned, bounded. A panic
/// while the payload is dropped, which is user code too, is caught as well.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let message = text::message(panics::message(&*payload)).to_string();
        panics::discard(payload);
        message
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_unwrapped_at_each_level_of_a_recursion_grows_by_a_line_a_level() {
        let mut error = ProbeError::failed("a \"quoted\" word at the leaf");
        let mut callback = ShutdownError::new("a \"quoted\" word at the leaf");
        for _ in 0..40 {
            let said = caught(|| panic!("called `unwrap()`: {error:?}")).unwrap_err();
            error = ProbeError::panicked(said);
            let said = caught(|| panic!("called `unwrap()`: {callback:?}")).unwrap_err();
            callback = ShutdownError::new(said);
        }
        for text in [format!("{error:?}"), format!("{callback:?}")] {
            assert!(text.len() < 40 * 120, "{} bytes", text.len());
            assert!(text.contains("a \"quoted\" word at the leaf"), "{text}");
        }
        let long = caught(|| panic!("{}", "x".repeat(1 << 20))).unwrap_err();
        assert!(
            long.len() < 5000 && ProbeError::failed("x".repeat(1 << 20)).to_string().len() < 5000
        );
    }
}
