//! Plain file I/O on workers: the way where io_uring is refused, and the way out where a ring's
//! answer isn't a plain yes (short, interrupted, not supported): here the request is carried on until it has
//! succeeded or failed for good. What the host's cache has needs no worker: it is read on the spot.

use std::sync::Arc;

use corewise_sync::context;
use corewise_workqueue::Workqueue;

use super::store::Store;
use crate::driver::Started;
use crate::error::IoError;

/// A file, and the workers that do its I/O.
#[derive(Clone)]
pub(super) struct Plain {
    store: Arc<Store>,
    wq: Workqueue,
}

impl Plain {
    pub(super) fn new(store: Store, wq: Workqueue) -> Self {
        Self { store: Arc::new(store), wq }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Does a request that needs no waiting, or has a worker do it.
    pub(super) fn queue(&self, mut rq: Started) {
        if self.store.read_now(rq.rq_mut()) { rq.complete(Ok(())) } else { self.start(rq, 0) }
    }

    /// Has a worker do the request, or its rest: the first `done` bytes of a write are written. (A
    /// read's progress is in the request.) Where the workers are shut down, the request completes as
    /// gone.
    pub(super) fn start(&self, mut rq: Started, done: u64) {
        let store = Arc::clone(&self.store);
        // Nobody waits for the handle: the request's completion tells.
        let _detached = self.wq.spawn(move || {
            let result = context::blocking("file I/O", || store.perform(rq.rq_mut(), done));
            rq.complete(result);
        });
    }

    /// Has a worker find out why a write with `fua` failed in a ring.
    pub(super) fn failed_fua(&self, rq: Started, error: IoError) {
        let store = Arc::clone(&self.store);
        let _detached = self.wq.spawn(move || {
            let result = context::blocking("file I/O", || store.failed_fua(&rq, error));
            rq.complete(result);
        });
    }
}
