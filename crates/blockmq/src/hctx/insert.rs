//! The way in: a request is counted in and put into its CPU's software queue, or waits outside.

use super::{Hctx, Pending};
use crate::usage::Unfrozen;

impl Hctx {
    /// Takes a request in; the caller then runs the queue with `visit`. Lock-free.
    pub(crate) fn insert(&self, pending: Box<Pending>) {
        let mut pending = pending;
        loop {
            if self.usage.enter(pending.slot) {
                let slot = pending.slot;
                self.software.push(slot, pending);
                return;
            }
            // Park, ParkFence (see `usage.rs`): either we see the thaw, or the thaw sees us.
            self.outside.push(pending);
            if self.usage.is_frozen_fenced() {
                return;
            }
            // Thawed meanwhile, and the thaw may have missed us: let in whoever is outside. All
            // but the last are inserted by recursion of depth one through `let_in`.
            let mut outside = self.outside.take();
            let Some(first) = outside.next() else { return };
            for other in outside {
                self.insert(other);
            }
            pending = first;
        }
    }

    /// Lets in who waits outside; the caller then runs the queue.
    fn let_in(&self) {
        for pending in self.outside.take() {
            self.insert(pending);
        }
    }

    /// What an unfreeze owes a hardware queue, by what it did to it; true where it was the last.
    pub(crate) fn unfrozen(&self, done: Unfrozen) -> bool {
        match done {
            Unfrozen::Thawed => {
                self.let_in();
                self.run_async();
                true
            }
            Unfrozen::Nested => false,
            Unfrozen::Underflow => {
                tracing::warn!(queue = %self.core.name, "unfreeze without a freeze; ignored");
                false
            }
        }
    }
}
