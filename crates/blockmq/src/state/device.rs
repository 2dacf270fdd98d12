//! Block devices as their users see them: geometry, `submit`, and blocking helpers for tests and
//! tools.

use std::sync::Arc;

use bytes::BytesMut;
use corewise_sync::{Completion, Mutex, context};

use crate::request::error::IoError;
use crate::request::geometry::Geometry;
use crate::request::read_only::ReadOnlyLatch;
use crate::request::{Buffer, Extents};
use crate::state::driver::Info;
use crate::state::request::{Completed, Request};

/// A block device: a [`Queue`](crate::Queue) over a driver, or any other type that takes requests.
/// Shared as `Arc<dyn BlockDevice>`, and stackable.
///
/// # What a device promises
/// - Every request completes exactly once, on any thread, perhaps before `submit` returns.
/// - Requests in flight at the same time are not ordered. A caller that needs order waits for the
///   first.
/// - A read after a write **completed** sees that write.
/// - After a flush has completed, every write that completed before the flush was submitted
///   survives a crash of this process and of the machine, as far as the layer below keeps its word.
///   A write with `fua` promises that for itself.
pub trait BlockDevice: Send + Sync {
    /// Returns the name by which logs and errors name this device.
    fn name(&self) -> &str;

    /// Returns the device's size, block size and abilities.
    fn geometry(&self) -> Geometry;

    /// Takes a request, and doesn't wait for its end. A request that is refused completes with the
    /// error.
    ///
    /// May be called in an atomic section, also from a completion function, and never blocks there.
    /// Elsewhere it may block: if [thousands](crate::QueueBuilder::nr_requests) of requests of the
    /// thread's CPU are inside a [`Queue`](crate::Queue), the thread waits for room, since it could
    /// fill the memory otherwise. So a thread that keeps a queue quiesced or frozen submits no more
    /// than that to it.
    fn submit(&self, rq: Request);

    /// Returns how often a flush, or a change with `fua`, has failed so that acknowledged changes
    /// [may be lost](crate::IoErrorKind::may_be_a_loss). Many devices report a loss once, to one of
    /// their users. The other users, such as partitions and clients of an export, see it here at
    /// their next flush. The count only grows, and counts a failure before that is reported. 0 for
    /// devices that don't count; any context.
    fn losses(&self) -> u64 {
        0
    }

    /// Returns true if the device lacks changes that were flushed before it was opened: it was
    /// opened without them, and nothing has changed it since. A mirror copies such a leg from
    /// another one. Any context.
    fn is_outdated(&self) -> bool {
        false
    }

    /// Returns the latch that is set once the device has become read-only. A device over others has
    /// the same latch, or that of [all](ReadOnlyLatch::any) of them. By default it is never set.
    fn read_only_latch(&self) -> ReadOnlyLatch {
        ReadOnlyLatch::never()
    }

    /// Takes several requests and starts them together, which costs less in bursts. Otherwise it
    /// does the same as [`submit`](BlockDevice::submit).
    fn submit_batch(&self, batch: &mut dyn Iterator<Item = Request>) {
        for rq in batch {
            self.submit(rq);
        }
    }
}

impl Info {
    /// Describes a driver that passes requests on to `below`. The driver has the geometry and the
    /// latch of that device, and a hardware queue for each CPU. It merges nothing, since the device
    /// below does.
    pub fn over(kind: &'static str, below: &(impl BlockDevice + ?Sized)) -> Self {
        Self {
            hw_queues: usize::MAX,
            merges: false,
            read_only_latch: below.read_only_latch(),
            ..Self::new(kind, below.geometry())
        }
    }
}

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

impl<T: BlockDevice + ?Sized> BlockDevice for Arc<T> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn geometry(&self) -> Geometry {
        (**self).geometry()
    }

    fn submit(&self, rq: Request) {
        (**self).submit(rq);
    }

    fn losses(&self) -> u64 {
        (**self).losses()
    }

    fn is_outdated(&self) -> bool {
        (**self).is_outdated()
    }

    fn read_only_latch(&self) -> ReadOnlyLatch {
        (**self).read_only_latch()
    }

    fn submit_batch(&self, batch: &mut dyn Iterator<Item = Request>) {
        (**self).submit_batch(batch);
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
