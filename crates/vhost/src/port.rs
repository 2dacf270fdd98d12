//! The way of a ring's requests to the device.

use std::sync::Arc;
use std::time::Instant;

use corewise_blockmq::{BlockDevice, Completed, Request};

/// The requests of one ring, on their way to the device.
pub(crate) struct Port {
    device: Arc<dyn BlockDevice>,
    /// O: the ring's thread alone.
    batch: Vec<Request>,
}

impl Port {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, batch: Vec::new() }
    }

    /// Takes a request. `then` runs at its end, on any thread, in an atomic section.
    pub(crate) fn push(&mut self, rq: Request, then: impl FnOnce(Completed) + Send + 'static) {
        self.batch.push(rq.on_complete(then));
    }

    /// Submits what may go now. Returns when to call again, if not only after a wake-up.
    pub(crate) fn submit(&mut self) -> Option<Instant> {
        match self.batch.len() {
            0 => {}
            1 => {
                if let Some(rq) = self.batch.pop() {
                    self.device.submit(rq);
                }
            }
            _ => self.device.submit_batch(&mut self.batch.drain(..)),
        }
        None
    }
}
