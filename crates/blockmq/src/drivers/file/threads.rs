//! Plain file I/O on workers: the way where io_uring is refused, and the way out where a ring's
//! answer isn't a plain yes (short, interrupted, not supported): here the request is carried on until it has
//! succeeded or failed for good. A read that the host's cache has needs no worker: it is read on the spot.

use std::sync::Arc;

use corewise_sync::context;
use corewise_workqueue::Workqueue;

use super::store::Store;
use crate::driver::Started;
use crate::error::{IoError, workers_gone};
use crate::request::Request;

/// A file, and the workers that do its I/O.
#[derive(Clone)]
pub(super) struct Plain {
    store: Arc<Store>,
    wq: Workqueue,
}

impl Plain {
    pub(super) fn new(store: Store, wq: &Workqueue) -> Self {
        Self { store: Arc::new(store), wq: wq.below() }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Does a request that needs no waiting, or has a worker do it.
    pub(super) fn queue(&self, mut rq: Started) {
        if self.store.read_now(rq.rq_mut()) { rq.complete(Ok(())) } else { self.start(rq, 0) }
    }

    /// Has a worker do the request, or its rest: the first `done` bytes of a write are written. (A
    /// read's progress is in the request.)
    pub(super) fn start(&self, rq: Started, done: u64) {
        self.on_worker(rq, move |store, rq| store.perform(rq, done));
    }

    /// Has a worker find out why a write with `fua` failed in a ring.
    pub(super) fn failed_fua(&self, rq: Started, error: IoError) {
        self.on_worker(rq, move |store, rq| store.failed_fua(rq, error));
    }

    /// Where there are no workers any more, the request completes as gone.
    fn on_worker(
        &self,
        rq: Started,
        work: impl FnOnce(&Store, &mut Request) -> Result<(), IoError> + Send + 'static,
    ) {
        let store = Arc::clone(&self.store);
        let mut waiting = Waiting(Some(rq));
        let job = move || {
            let Some(mut rq) = waiting.0.take() else { return };
            let result = context::blocking("file I/O", || work(&store, rq.rq_mut()));
            rq.complete(result);
        };
        drop(self.wq.execute(job));
    }
}

/// A request that waits for a worker. Dropped, it completes: no worker comes any more.
struct Waiting(Option<Started>);

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(rq) = self.0.take() {
            rq.complete(Err(workers_gone()));
        }
    }
}
