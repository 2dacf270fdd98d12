//! A runtime for the workloads' own tests: it runs everything in the queueing call itself, and counts.

use std::sync::Arc;

use corewise_sync::Unparker;
use corewise_sync::atomic::{AtomicUsize, Ordering};

use crate::workqueue::runtime::{Reuse, Runtime, Signal, Spawn};
use crate::workqueue::tiny::Tiny;

/// Runs items and closures in the queueing call; refuses each second reused item.
#[derive(Clone, Default)]
pub(super) struct Inline {
    /// A: Relaxed; read after the threads were joined. Calls from outside, refused ones too.
    queued: Arc<AtomicUsize>,
    /// A: as `queued`: calls from within a task.
    inside: Arc<AtomicUsize>,
    /// A: as `queued`.
    flushed: Arc<AtomicUsize>,
}

impl Inline {
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    pub(super) fn inside(&self) -> usize {
        self.inside.load(Ordering::Relaxed)
    }

    pub(super) fn flushed(&self) -> usize {
        self.flushed.load(Ordering::Relaxed)
    }
}

impl Runtime for Inline {
    fn flush(&self) {
        self.flushed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Signal for Inline {
    type Item = Unparker;

    fn item(&self, done: Unparker) -> Unparker {
        done
    }

    fn queue(&self, item: &Unparker) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        item.unpark();
    }
}

impl Spawn for Inline {
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        closure();
    }

    fn spawn_inside<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.inside.fetch_add(1, Ordering::Relaxed);
        closure();
    }
}

impl Reuse for Inline {
    type Item = Tiny;

    fn reusable(&self, tiny: Tiny) -> Tiny {
        tiny
    }

    fn requeue(&self, item: &Tiny) -> bool {
        let accepted = self.queued.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        if accepted {
            item.run();
        }
        accepted
    }
}
