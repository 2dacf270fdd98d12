//! tokio's multi-threaded runtime.
//!
//! In its best mode it has a task per closure, whose handle is dropped at once. `spawn` of the
//! runtime's handle is for calls from outside, `tokio::spawn` for those from within. The default
//! settings are those that its documentation recommends. A blocking item goes to `spawn_blocking`.
//! In a runtime of its own name, it announces with `block_in_place` that it blocks.

use corewise_bench::workqueue::runtime::Spawn;
use corewise_bench::{BenchError, Job};
use tokio::runtime::{Builder, Handle};

use crate::workqueue::peers::Pin;

/// The runtime. `IN_PLACE` selects its hint for a task that blocks. It lives as long as the
/// process.
#[derive(Clone)]
pub(crate) struct Tokio<const IN_PLACE: bool>(Handle);

impl<const IN_PLACE: bool> Tokio<IN_PLACE> {
    pub(crate) fn new(job: &Job) -> Result<Self, BenchError> {
        let (pin, mut builder) = (Pin::of(job), Builder::new_multi_thread());
        builder.worker_threads(job.workers).on_thread_start(move || pin.pin());
        let runtime = builder.build().map_err(BenchError::Thread)?;
        let handle = runtime.handle().clone();
        std::mem::forget(runtime);
        Ok(Tokio(handle))
    }
}

impl<const IN_PLACE: bool> Spawn for Tokio<IN_PLACE> {
    const HAS_HINT: bool = true;

    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        drop(self.0.spawn(async move { closure() }));
    }

    fn spawn_inside<F: FnOnce() + Send + 'static>(&self, closure: F) {
        drop(tokio::spawn(async move { closure() }));
    }

    fn spawn_blocking<F: FnOnce() + Send + 'static>(&self, closure: F) {
        if IN_PLACE {
            self.spawn(move || tokio::task::block_in_place(closure));
        } else {
            drop(self.0.spawn_blocking(closure));
        }
    }
}
