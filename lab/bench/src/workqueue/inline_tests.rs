//! A runtime for the workloads' own tests: it runs each item in the queueing call itself, and
//! counts.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};

use crate::workqueue::runtime::{Reuse, Spawn};
use crate::workqueue::tiny::Tiny;

/// Runs items and closures in the queueing call; refuses each second reused item.
#[derive(Clone, Default)]
pub(super) struct Inline(Arc<[AtomicUsize; 3]>);

const QUEUED: usize = 0;
const INSIDE: usize = 1;
const FLUSHED: usize = 2;

impl Inline {
    fn count(&self, what: usize) -> usize {
        self.0[what].fetch_add(1, Ordering::Relaxed)
    }

    /// Calls from outside, refused ones too; calls from within a task; flushes.
    pub(super) fn counted(&self) -> [usize; 3] {
        [QUEUED, INSIDE, FLUSHED].map(|what| self.0[what].load(Ordering::Relaxed))
    }
}

impl Spawn for Inline {
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.count(QUEUED);
        closure();
    }

    fn spawn_inside<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.count(INSIDE);
        closure();
    }

    fn flush(&self) {
        self.count(FLUSHED);
    }
}

impl Reuse for Inline {
    type Item = Tiny;

    fn reusable(&self, tiny: Tiny) -> Tiny {
        tiny
    }

    fn requeue(&self, item: &Tiny) -> bool {
        let accepted = self.count(QUEUED) % 2 == 1;
        if accepted {
            item.run();
        }
        accepted
    }
}
