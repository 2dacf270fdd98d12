//! An item for models that counts its runs.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_workqueue::Work;

/// An item that counts its runs, and loom sees if two are in it at once.
pub(crate) fn counting() -> (Work, Arc<AtomicUsize>) {
    struct Alone(UnsafeCell<()>);
    // SAFETY: that only one thread at a time touches it is what the model checks.
    unsafe impl Send for Alone {}
    // SAFETY: as above.
    unsafe impl Sync for Alone {}
    let (alone, runs) = (Alone(UnsafeCell::new(())), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&runs);
    let work = Work::new(move || {
        let alone = &alone;
        alone.0.with_mut(|_| counted.fetch_add(1, Ordering::Relaxed));
    });
    (work, runs)
}
