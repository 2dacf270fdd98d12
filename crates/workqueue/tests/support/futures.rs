//! Helpers that tests of futures share.

use std::future::{Future, poll_fn};
use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicBool, Ordering};

/// Waits for an event as a future does.
pub(crate) fn happened(event: &Arc<Completion>) -> impl Future<Output = ()> + Send + use<> {
    let event = Arc::clone(event);
    async move { poll_fn(|cx| event.poll_complete(cx)).await }
}

/// Says when it is dropped.
pub(crate) struct OnDrop(pub(crate) Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
