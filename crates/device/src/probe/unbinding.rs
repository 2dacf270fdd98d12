//! A callback of a device that is unbound. A shutdown that begins meanwhile takes it over: it is that device's callback in the
//! shutdown, too, so that it is named and given up there like any other.

use crate::ShutdownDone;
use crate::driver::{Bound, ShutdownError};
use corewise_sync::{Completion, Mutex};
use std::sync::Arc;

/// How it gets on.
#[derive(Default)]
pub(crate) struct Unbinding {
    /// I: complete once the callback is over, and `end` says how.
    over: Completion,
    /// L: is the lock, held for a moment; guards how it ended, and the shutdown that is to hear of it.
    end: Mutex<End>,
}

#[derive(Default)]
struct End {
    result: Option<Result<(), ShutdownError>>,
    shutdown: Option<ShutdownDone>,
}

impl Unbinding {
    /// The callback is over.
    pub(super) fn finish(&self, result: Result<(), ShutdownError>) {
        let mut end = self.end.lock();
        end.result = Some(result.clone());
        let shutdown = end.shutdown.take();
        drop(end);
        self.over.complete();
        if let Some(done) = shutdown {
            done.finish(result);
        }
    }

    /// Blocks until it is over.
    pub(super) fn wait(&self) -> Result<(), ShutdownError> {
        self.over.wait();
        self.end.lock().result.clone().unwrap_or(Ok(()))
    }
}

/// What a shutdown finds in the place of a device whose callback is being called.
pub(crate) struct TakenOver {
    unbinding: Arc<Unbinding>,
    /// Dropped when the shutdown drops those of others: behind its callback, and before what it needs.
    _object: Arc<dyn Bound>,
}

impl TakenOver {
    pub(crate) fn new(unbinding: Arc<Unbinding>, object: Arc<dyn Bound>) -> Arc<Self> {
        Arc::new(TakenOver { unbinding, _object: object })
    }
}

impl Bound for TakenOver {
    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        let mut end = self.unbinding.end.lock();
        match end.result.clone() {
            None => end.shutdown = Some(done),
            Some(result) => {
                drop(end);
                done.finish(result);
            }
        }
    }
}
