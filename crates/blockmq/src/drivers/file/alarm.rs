//! Telling that a file device lost data: the log, and its owner, once for each way in which it can.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_sync::{Mutex, panics};

use crate::error::IoError;

/// What happened to a file device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FileEvent {
    /// Data is lost, or may be: its file was truncated or unlinked, or a flush failed. Every flush fails from now on, until
    /// the file is opened again.
    Lost {
        /// What was found.
        why: IoError,
    },
}

/// Is told what happens to a file device.
pub(super) type Observer = Arc<dyn Fn(&FileEvent) + Send + Sync>;

/// Whether a device has lost data, and to whom that is told.
pub(super) struct Alarm {
    /// The device's name, where it has one.
    device: Option<String>,
    /// For people.
    file: String,
    observer: Option<Observer>,
    /// L: is the lock; guards what was found first.
    found: Mutex<Option<IoError>>,
}

impl Alarm {
    pub(super) fn new(file: &str, device: Option<String>, observer: Option<Observer>) -> Self {
        Self { device, file: file.to_owned(), observer, found: Mutex::new(None) }
    }

    #[cfg(test)]
    pub(super) fn of_test(file: &str) -> Self {
        Self::new(file, None, None)
    }

    /// Tells it. `so`: what follows from it. Any context.
    pub(super) fn raise(&self, error: &IoError, so: &str) {
        self.found.lock().get_or_insert_with(|| error.clone());
        let (device, file) = (self.device.as_deref(), &*self.file);
        tracing::error!(device, file, %error, "{so}");
        let Some(observer) = &self.observer else { return };
        let tell = || observer(&FileEvent::Lost { why: error.clone() });
        if let Err(payload) = catch_unwind(AssertUnwindSafe(tell)) {
            panics::discard(payload);
            tracing::error!(device, file, "the observer of a file device panicked");
        }
    }

    /// What was found first.
    pub(super) fn found(&self) -> Option<IoError> {
        self.found.lock().clone()
    }
}
