//! The reports of a file device about its faults: to the log, and to its owner, once for each kind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_blockmq::{Displaced, IoError, IoErrorKind};
use corewise_sync::{Mutex, panics};

use crate::file_guard::FileFault;

/// An event of a file device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FileEvent {
    /// Data is lost, or may be: its file was truncated or unlinked, or a flush failed. Every flush
    /// fails from now on, until the file is opened again.
    Lost {
        /// The loss that was found.
        why: IoError,
    },
    /// Data is safe, but the path of the file doesn't lead to the one in use: the next server would
    /// find another file, or none. Or its write log is displaced, or was replaced: then the device
    /// makes no change.
    Moved {
        /// The fault, and the file's present path.
        why: String,
    },
    /// The path leads to the file again, or the write log is in order again.
    Back,
}

const MOVED: &str = "the path of a file device doesn't lead to its file any more";
const UNLOGGED: &str =
    "a file device refuses changes, since its write log was moved, replaced or truncated";

/// A file, or a write log, that is displaced, or was replaced.
#[derive(Clone, Debug)]
pub(super) struct FileDisplacement {
    /// The path of the write log, if it is that one.
    log: Option<String>,
    /// The fault in words.
    why: String,
    todo: &'static str,
}

impl FileDisplacement {
    pub(super) fn file(fault: &FileFault) -> Self {
        let todo = match fault {
            FileFault::NoAccess => "Allow the server to open the file again before the next start",
            _ => "Put the file back in its place, or change the path before the next start",
        };
        Self { log: None, why: fault.to_string(), todo }
    }

    pub(super) fn log(name: &str, fault: &FileFault) -> Self {
        let todo = match fault {
            FileFault::Unlinked => "Restart the server, which begins a new write log",
            FileFault::Truncated { .. } => {
                "Move the write log away and restart the server, which begins a new one"
            }
            FileFault::NoAccess => "Allow the server to open the write log",
            _ => "Put the write log back in its place",
        };
        Self { log: Some(name.to_owned()), why: format!("the write log {name}: {fault}"), todo }
    }

    /// Returns the consequences.
    pub(super) fn displaced(&self) -> Displaced {
        Displaced { todo: self.todo, blocks_changes: self.log.is_some() }
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// Returns the error with which a request ends.
    pub(super) fn error(&self) -> IoError {
        let why = match self.log {
            Some(_) => format!("{}; the device refuses changes. {}", self.why, self.todo),
            None => self.why.clone(),
        };
        IoError::with(IoErrorKind::Io(libc::EIO), why)
    }
}

/// The listener to the events of a file device.
pub(super) type Observer = Arc<dyn Fn(&FileEvent) + Send + Sync>;

/// The record of a device's losses and of its displaced file, and the receivers of the reports.
pub(super) struct FaultReporter {
    /// Name of the device, if it has one.
    device: Option<String>,
    /// Name of the file, for people.
    file: String,
    observer: Option<Observer>,
    /// L: is the lock; guards the first loss that was found.
    found: Mutex<Option<IoError>>,
    /// L: is the lock; guards how the file is displaced.
    moved: Mutex<Option<FileDisplacement>>,
}

impl FaultReporter {
    pub(super) fn new(file: &str, device: Option<String>, observer: Option<Observer>) -> Self {
        let (found, moved) = (Mutex::default(), Mutex::default());
        Self { device, file: file.to_owned(), observer, found, moved }
    }

    #[cfg(test)]
    pub(super) fn of_test(file: &str) -> Self {
        Self::new(file, None, None)
    }

    /// Reports a loss. `so`: its consequences. Any context.
    pub(super) fn report_loss(&self, error: &IoError, so: &str) {
        self.found.lock().get_or_insert_with(|| error.clone());
        let (device, file) = (self.device.as_deref(), &*self.file);
        tracing::error!(device, file, %error, "{so}");
        self.tell(&FileEvent::Lost { why: error.clone() });
    }

    /// Records how the file, or its write log, is displaced; `None`: it isn't. Reports a change,
    /// but not one of the words alone. It may block.
    pub(super) fn report_displacement(&self, now: Option<FileDisplacement>) {
        let device = self.device.as_deref();
        let before = std::mem::replace(&mut *self.moved.lock(), now.clone());
        let what = |displacement: &FileDisplacement| displacement.log.is_some();
        if before.as_ref().map(what) == now.as_ref().map(what) {
            return;
        }
        match (before, now) {
            (_, Some(FileDisplacement { log, why, todo })) => {
                let so = if log.is_some() { UNLOGGED } else { MOVED };
                let file = log.as_ref().unwrap_or(&self.file);
                tracing::error!(device, file, error = why, "{so}. {todo}");
                self.tell(&FileEvent::Moved { why });
            }
            (Some(before), None) => {
                let file = before.log.as_ref().unwrap_or(&self.file);
                tracing::warn!(device, file, "a file is back in its place");
                self.tell(&FileEvent::Back);
            }
            (None, None) => {}
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

    /// Returns the first loss that was found.
    pub(super) fn loss(&self) -> Option<IoError> {
        self.found.lock().clone()
    }

    /// Returns how the file, or its write log, is displaced.
    pub(super) fn displacement(&self) -> Option<FileDisplacement> {
        self.moved.lock().clone()
    }
}
