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
    /// Nothing is lost, but the path of the file, or of its write log, doesn't lead to what is in use: the next server would find another
    /// file, or none. A device whose write log isn't in place makes no change.
    Moved {
        /// What was found, and where the file is now.
        why: String,
    },
    /// The path leads to the file again.
    Back,
}

const MOVED: &str = "the path of a file device doesn't lead to its file any more; put the file back, or the next server finds another one";

/// Is told what happens to a file device.
pub(super) type Observer = Arc<dyn Fn(&FileEvent) + Send + Sync>;

/// Whether a device has lost data, or its file isn't in its place, and to whom that is told.
pub(super) struct Alarm {
    /// The device's name, where it has one.
    device: Option<String>,
    /// For people.
    file: String,
    observer: Option<Observer>,
    /// L: is the lock; guards what was found first.
    found: Mutex<Option<IoError>>,
    /// L: is the lock; guards how the file isn't in its place.
    moved: Mutex<Option<String>>,
}

impl Alarm {
    pub(super) fn new(file: &str, device: Option<String>, observer: Option<Observer>) -> Self {
        let (found, moved) = (Mutex::default(), Mutex::default());
        Self { device, file: file.to_owned(), observer, found, moved }
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
        self.tell(&FileEvent::Lost { why: error.clone() });
    }

    /// Says how the file, or its write log, isn't in its place; `None`: it is. Told where that changes, and not where only the words do. It may block.
    pub(super) fn moved(&self, why: Option<String>) {
        let (device, file) = (self.device.as_deref(), &*self.file);
        let before = std::mem::replace(&mut *self.moved.lock(), why.clone());
        match (before, why) {
            (None, Some(why)) => {
                tracing::error!(device, file, error = why, "{MOVED}");
                self.tell(&FileEvent::Moved { why });
            }
            (Some(_), None) => {
                tracing::info!(device, file, "the path of a file device leads to its file again");
                self.tell(&FileEvent::Back);
            }
            _ => {}
        }
    }

    fn tell(&self, event: &FileEvent) {
        let (device, file) = (self.device.as_deref(), &*self.file);
        let Some(observer) = &self.observer else { return };
        let tell = || observer(event);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(tell)) {
            panics::discard(payload);
            tracing::error!(device, file, "the observer of a file device panicked");
        }
    }

    /// What was found first.
    pub(super) fn found(&self) -> Option<IoError> {
        self.found.lock().clone()
    }

    /// How the file isn't in its place.
    pub(super) fn why_moved(&self) -> Option<String> {
        self.moved.lock().clone()
    }
}
