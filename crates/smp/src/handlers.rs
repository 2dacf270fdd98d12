//! Waiting until the handlers that run just now have ended, without disturbing the CPUs that run none.
//!
//! A handler is a reading section of the handle's epochs, opened by the thread that runs its CPU's target: two plain stores.
//! (Models of calls do without: epochs have models of their own.)

use corewise_sync::epoch::{Epochs, Reader, Section};
use corewise_sync::hint;

/// The handlers of all targets of a handle.
#[derive(Default)]
pub(crate) struct Handlers {
    epochs: Epochs,
}

/// Those of one target, one after the other.
pub(crate) struct OneByOne {
    reader: Reader,
}

/// A handler that is being run, until dropped.
pub(crate) struct Begun<'a> {
    _section: Option<Section<'a>>,
}

impl Handlers {
    pub(crate) fn of_a_target(&self) -> OneByOne {
        OneByOne { reader: self.epochs.reader() }
    }

    /// Returns when those that run just now have ended. Not for a handler, which would wait for itself.
    #[track_caller]
    pub(crate) fn synchronize(&self) {
        self.epochs.synchronize();
    }
}

impl OneByOne {
    /// The stepper of the target is about to run a handler.
    #[inline]
    pub(crate) fn begin(&self) -> Begun<'_> {
        Begun { _section: (!hint::EVERY_SCHEDULE).then(|| self.reader.enter()) }
    }
}
