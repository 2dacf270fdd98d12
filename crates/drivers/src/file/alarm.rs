//! Telling that a file device lost data: the log, and its owner, once for each way in which it can.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewise_blockmq::{Displaced, IoError, IoErrorKind};
use corewise_sync::{Mutex, panics};

use crate::file_guard::FileFault;

/// What happened to a file device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FileEvent {
    /// Data is lost, or may be: its file was truncated or unlinked, or a flush failed. Every flush
    /// fails from now on, until the file is opened again.
    Lost {
        /// What was found.
        why: IoError,
    },
    /// Nothing is lost, but the path of the file doesn't lead to what is in use: the next server
    /// would find another file, or none. Or its write log isn't in its place, or isn't what it was:
    /// then the device makes no change.
    Moved {
        /// What was found, and where the file is now.
        why: String,
    },
    /// The path leads to the file again, or the write log is what it was.
    Back,
}

const MOVED: &str = "the path of a file device doesn't lead to its file any more";
const UNLOGGED: &str = "a file device makes no change, since its write log isn't what it was";

/// A file, or a write log, that isn't in its place, or isn't what it was.
#[derive(Clone, Debug)]
pub(super) struct Misplaced {
    /// The path of the write log, where it is that one.
    log: Option<String>,
    /// In words.
    why: String,
    todo: &'static str,
}

impl Misplaced {
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
        Self { log: Some(name.to_owned()), why: format!("its write log {name}: {fault}"), todo }
    }

    /// What follows from it.
    pub(super) fn displaced(&self) -> Displaced {
        Displaced { todo: self.todo, blocks_changes: self.log.is_some() }
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// As the end of a request.
    pub(super) fn error(&self) -> IoError {
        let why = match self.log {
            Some(_) => format!("{}; no change is made. {}", self.why, self.todo),
            None => self.why.clone(),
        };
        IoError::with(IoErrorKind::Io(libc::EIO), why)
    }
}

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
    moved: Mutex<Option<Misplaced>>,
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

    /// Says how the file, or its write log, isn't in its place; `None`: it is. Told where that
    /// changes, and not where only the words do. It may block.
    pub(super) fn moved(&self, now: Option<Misplaced>) {
        let device = self.device.as_deref();
        let before = std::mem::replace(&mut *self.moved.lock(), now.clone());
        let what = |misplaced: &Misplaced| misplaced.log.is_some();
        if before.as_ref().map(what) == now.as_ref().map(what) {
            return;
        }
        match (before, now) {
            (_, Some(Misplaced { log, why, todo })) => {
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

    /// What was found first.
    pub(super) fn found(&self) -> Option<IoError> {
        self.found.lock().clone()
    }

    /// How the file, or its write log, isn't in its place.
    pub(super) fn misplaced(&self) -> Option<Misplaced> {
        self.moved.lock().clone()
    }
}
