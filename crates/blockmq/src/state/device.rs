//! Blocking calls on block devices, for tests and tools.

use std::sync::Arc;

use bytes::BytesMut;
use corewise_sync::{Completion, Mutex, context};

use crate::request::error::IoError;
use crate::request::{Buffer, Extents};
use crate::state::driver::BlockDevice;
use crate::state::request::{Completed, Request};

/// Blocking calls on a [`BlockDevice`], for tests, tools and metadata.
///
/// Each may block the calling thread. On a workqueue worker they count as a blocking region.
///
/// # Panics
/// In an atomic section, that is in a driver's `queue_request` or in a completion function: there
/// each could wait for itself.
pub trait BlockDeviceExt: BlockDevice {
    /// Submits and waits.
    #[track_caller]
    fn execute(&self, rq: Request) -> Completed {
        wait_for(self, rq, "execute")
    }

    /// Reads `len` bytes at byte `offset`.
    #[track_caller]
    fn read_at(&self, offset: u64, len: usize) -> Result<BytesMut, IoError> {
        wait_for(self, Request::read(offset, len), "read_at").into_data()
    }

    /// Writes `data` at byte `offset`. Durable after the next [`flush`](BlockDeviceExt::flush).
    #[track_caller]
    fn write_at(&self, offset: u64, data: impl Into<Buffer>) -> Result<(), IoError> {
        wait_for(self, Request::write(offset, data), "write_at").result
    }

    /// Returns the extents of a range: see [`Request::extents_of`].
    #[track_caller]
    fn extents_of(&self, offset: u64, len: u64, most: u32) -> Result<Extents, IoError> {
        wait_for(self, Request::extents_of(offset, len, most), "extents_of").into_extents()
    }

    /// Makes completed changes durable.
    #[track_caller]
    fn flush(&self) -> Result<(), IoError> {
        wait_for(self, Request::flush(), "flush").result
    }

    /// Gives up the content of a range.
    #[track_caller]
    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        wait_for(self, Request::discard(offset, len), "discard").result
    }

    /// Zeroes a range.
    #[track_caller]
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), IoError> {
        wait_for(self, Request::write_zeroes(offset, len), "write_zeroes").result
    }
}

impl<T: BlockDevice + ?Sized> BlockDeviceExt for T {}

#[track_caller]
fn wait_for<D: BlockDevice + ?Sized>(device: &D, rq: Request, what: &'static str) -> Completed {
    let answer = Answer::of(device, rq, what);
    answer.0.wait();
    answer.take()
}

/// The place where a request leaves its result for its waiter.
struct Answer(
    Completion,
    /// L: is the lock; guards the result, once that is known.
    Mutex<Option<Completed>>,
);

impl Answer {
    /// Submits the request, for the function `what`, which then waits.
    #[track_caller]
    fn of<D: BlockDevice + ?Sized>(device: &D, rq: Request, what: &'static str) -> Arc<Self> {
        refuse_to_wait("BlockDeviceExt", what, "submit");
        let answer = Arc::new(Self(Completion::new(), Mutex::new(None)));
        let theirs = Arc::clone(&answer);
        device.submit(rq.on_complete(move |done| {
            *theirs.1.lock() = Some(done);
            theirs.0.complete();
        }));
        answer
    }

    /// Waits until the request is complete, and returns the result.
    fn take(&self) -> Completed {
        self.1.lock().take().expect("the completion is signalled after the slot is filled")
    }
}

/// Panics in an atomic section, and else reports a wait for requests. In an atomic section the
/// caller would wait for itself, for ever. The report has both sites, and the panic gives a remedy.
#[track_caller]
pub(crate) fn refuse_in_atomic_section(what: &'static str, instead: &str) {
    refuse_to_wait("Queue", what, instead);
}

/// Does the same for a function that isn't a queue's.
#[track_caller]
fn refuse_to_wait(of: &str, what: &'static str, instead: &str) {
    context::might_block(what);
    assert!(
        !context::in_atomic_section(),
        "{of}::{what} inside an atomic section (a dispatch or a completion) would wait for \
         itself; call {instead} here, and wait elsewhere"
    );
}
