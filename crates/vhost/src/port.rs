//! The way of a ring's requests to the device.
//!
//! Each ring is a client of its own to the device: its thread begins requests, takes turns with the
//! other clients, and learns of losses. The rings of one guest share their limits.

use std::sync::Arc;
use std::task::Waker;

use corewise_blockmq::{Completed, Request};
use corewise_export::{Client, Feed, Identity, Next};

use crate::shared::DiskShared;

/// The requests of one ring, on their way to the device.
pub(crate) struct Port(Feed);

impl Port {
    /// Registers a ring of this guest as a client of the device.
    pub(crate) fn new(disk: &DiskShared, who: Identity, waker: Waker) -> Self {
        let client = Client::new(&disk.export, who, waker);
        Self(Feed::new(Arc::new(client), disk.limiter.iter().cloned().collect()))
    }

    /// Takes a request. `then` runs at its end, on any thread, in an atomic section.
    pub(crate) fn push(&mut self, rq: Request, then: impl FnOnce(Completed) + Send + 'static) {
        self.0.push(rq, then);
    }

    /// Submits what may go now, and returns when to call again.
    pub(crate) fn submit(&mut self) -> Next {
        self.0.submit()
    }

    /// Makes the next flush fail, since changes that a former server answered may be lost.
    pub(crate) fn owe_a_failure(&self) {
        self.0.client().owe_a_failure();
    }

    /// Records that the ring has ended. `clean` is true if its guest got all answers.
    pub(crate) fn leave(&self, clean: bool) {
        self.0.client().leave(clean);
    }
}
