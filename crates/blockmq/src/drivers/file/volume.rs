//! A file, and the ways that a request takes which needs no ring: on the spot, or on a worker.
//!
//! On the spot goes what the host's cache has, or takes: a copy, for the submitter's own CPU. A worker does what
//! blocks where there is no ring, changes of the host's cache that can't be tried without waiting, and what a ring's
//! answer left half done: short, interrupted, not supported. It is carried on here until it has succeeded or failed for
//! good.

use std::sync::Arc;

use corewise_sync::context;
use corewise_workqueue::Workqueue;

use super::lane::{Crew, Lanes};
use super::store::Store;
use crate::driver::Started;
use crate::error::{IoError, IoErrorKind, workers_gone};
use crate::request::{Op, Request};

/// A file, and the workers that do its I/O.
pub(super) struct Volume {
    store: Store,
    wq: Workqueue,
    lanes: Lanes,
}

impl Volume {
    pub(super) fn new(store: Store, wq: &Workqueue, crew: &Arc<Crew>) -> Arc<Self> {
        let lanes = Lanes::new(crew, store.align().is_none());
        Arc::new(Self { store, wq: wq.below(), lanes })
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Does a request that needs no waiting; any other it gives back, perhaps with a read's first bytes in it.
    #[inline]
    pub(super) fn now(&self, mut rq: Started) -> Option<Started> {
        match self.store.now(rq.rq_mut()) {
            Some(result) => rq.complete(result),
            None => return Some(rq),
        }
        None
    }

    /// Whether a worker does better with it than a ring, whose kernel would only have a thread of its own do it.
    pub(super) fn is_for_workers(&self, rq: &Request) -> bool {
        rq.op() == Op::Write && self.store.align().is_none()
    }

    /// Has a worker do the request, or its rest. (A read's progress is in the request.)
    pub(super) fn work(self: &Arc<Self>, rq: Started) {
        let lane = if rq.op() == Op::Write { &self.lanes.changes } else { &self.lanes.others };
        lane.push(self, rq, &self.wq);
    }

    /// Has a worker carry on a write whose first `done` bytes are written.
    pub(super) fn carry_on(self: Arc<Self>, rq: Started, done: u64) {
        self.on_worker(rq, move |store, rq| store.perform(rq, done));
    }

    /// Has a worker find out why a write with `fua` failed in a ring.
    pub(super) fn failed_fua(self: Arc<Self>, rq: Started, error: IoError) {
        self.on_worker(rq, move |store, rq| store.failed_fua(rq, error));
    }

    /// Where there are no workers any more, the request completes as gone.
    fn on_worker(
        self: Arc<Self>,
        rq: Started,
        work: impl FnOnce(&Store, &mut Request) -> Result<(), IoError> + Send + 'static,
    ) {
        let wq = self.wq.clone();
        let mut waiting = Waiting(Some(rq));
        let job = move || {
            let Some(mut rq) = waiting.0.take() else { return };
            let result = context::blocking("file I/O", || work(&self.store, rq.rq_mut()));
            // The file goes before the request, which may be the last to keep the device.
            drop(self);
            rq.complete(result);
        };
        drop(wq.execute(job));
    }
}

/// The volume of a request that was taken out of a lane or an inbox.
pub(super) fn of(rq: &mut Started) -> Option<Arc<Volume>> {
    rq.take_owner()?.downcast().ok()
}

/// Does a request that was taken out of a lane. Blocks.
pub(super) fn perform(mut rq: Started) {
    let Some(volume) = of(&mut rq) else { return rq.complete(Err(lost())) };
    let result = context::blocking("file I/O", || volume.store.perform(rq.rq_mut(), 0));
    // The file goes before the request, which may be the last to keep the device.
    drop(volume);
    rq.complete(result);
}

/// Completes a request that was taken out of a lane: there are no workers.
pub(super) fn gone(mut rq: Started) {
    drop(of(&mut rq));
    rq.complete(Err(workers_gone()));
}

/// Cannot be: the one that put it there put its volume with it.
pub(super) fn lost() -> IoError {
    IoError::with(IoErrorKind::Gone, "the file device lost track of the request's file")
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
