//! Shows loom who accesses what is atomic only so that a broken obligation is no data race.

use super::UnsafeCell;

/// Stands beside such a field, and is told of each access: loom reports two that nothing orders.
pub(crate) struct Witness(
    /// P: as the field beside it.
    UnsafeCell<()>,
);

// SAFETY: there is nothing in it, and loom looks after the accesses.
unsafe impl Sync for Witness {}

impl Witness {
    pub(crate) fn new() -> Self {
        Witness(UnsafeCell::new(()))
    }

    pub(crate) fn reads(&self) {
        self.0.with(|_| ());
    }

    pub(crate) fn writes(&self) {
        self.0.with_mut(|_| ());
    }
}
