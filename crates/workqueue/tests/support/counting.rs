//! An item for models that counts its runs.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_workqueue::Work;

/// Returns an item that counts its runs. Its function lies in a cell, by which loom sees if two
/// threads are in it at once.
pub(crate) fn counting() -> (Work, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let work = Work::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    (work, runs)
}
