//! What a driver is: the code behind a [`Queue`](crate::Queue) that starts requests.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::inbox::{Link, Node};
use corewise_topology::CpuId;

use std::time::Duration;

use crate::request::error::{IoError, IoErrorKind};
use crate::request::geometry::Geometry;
use crate::request::read_only::ReadOnlyLatch;
use crate::state::core::Core;
use crate::state::late::{LateOne, TimedOut, TimerReturn};
use crate::state::pending::{Pending, Verdict};
use crate::state::request::Request;

/// Requests that each hardware queue may have in the driver at once if the driver doesn't say: the
/// kernel's `BLKDEV_DEFAULT_RQ`.
pub const DEFAULT_DEPTH: u32 = 128;

/// What follows from a file or a folder of a device that isn't in its place, or isn't what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// What to do: a sentence for people, without its full stop.
    pub todo: &'static str,
    /// Changes and flushes of the device fail until that is done.
    pub blocks_changes: bool,
}

/// What a driver says of itself and its device, once, when a queue is built over it.
///
/// [`Info::new`] has what every driver needs, and each other field's default. A driver writes what
/// is different:
///
/// ```
/// # use corewise_blockmq::{Geometry, Info};
/// let info = Info { depth: 32, merges: false, ..Info::new("disk", Geometry::new(1 << 30)) };
/// # assert_eq!((info.hw_queues, info.depth), (1, 32));
/// ```
#[derive(Clone, Debug)]
pub struct Info {
    /// The kind of the driver, in a word: `"memory"`, `"file"`. The queue's name where its builder
    /// gives none, and in the log.
    pub kind: &'static str,
    /// What the device looks like. The queue checks and cuts requests by it. The size is that at
    /// the time of the call; later the device only [grows](Driver::grow).
    pub geometry: Geometry,
    /// Hardware queues that the driver has room for, at least 1, which is the default. The queue
    /// makes as many, though never more than there are CPUs: `usize::MAX` is one for each CPU.
    pub hw_queues: usize,
    /// Requests that each hardware queue may have in the driver at once: 1 to 10 240, the kernel's
    /// `BLK_MQ_MAX_DEPTH`. Less counts as 1, more as 10 240. By default [`DEFAULT_DEPTH`]. The
    /// queue makes as many tags, unless its [builder](crate::QueueBuilder::depth) wants fewer.
    pub depth: u32,
    /// [`Driver::queue_request`] and [`Driver::commit`] may block; `false` by default. The queue
    /// then calls them on workers only, outside of atomic sections, and each request costs a switch
    /// to a worker. Where the driver blocks, it tells the worker's pool by
    /// [`context::blocking`](corewise_sync::context::blocking). (The kernel's `BLK_MQ_F_BLOCKING`.)
    pub may_block: bool,
    /// The driver gains by few large requests instead of many small ones that touch; `true` by
    /// default. The queue then merges what waits.
    pub merges: bool,
    /// The driver knows which parts of the device are allocated and which read as zeroes; `false`
    /// by default. Otherwise the queue answers such questions itself: all counts as data. It isn't
    /// taken from the device below, since a filter that changes bytes can't hand on what is known
    /// there.
    pub knows_extents: bool,
    /// The longest time that a request may be in the driver before the queue calls
    /// [`Driver::timeout`]. `None`, the default: as long as it takes.
    /// [`QueueBuilder::timeout`](crate::QueueBuilder::timeout) goes before it.
    pub io_timeout: Option<Duration>,
    /// The latch that tells that nothing of the device can be changed any more, though its geometry
    /// says so; by default it is [never](ReadOnlyLatch::never) set. Once it is set, the queue's
    /// geometry is read-only. Requests still go to the driver, which says why it refuses them.
    pub read_only_latch: ReadOnlyLatch,
}

impl Info {
    /// Describes a driver that has one hardware queue of [`DEFAULT_DEPTH`], and gains by merged
    /// requests.
    pub const fn new(kind: &'static str, geometry: Geometry) -> Self {
        Self {
            kind,
            geometry,
            hw_queues: 1,
            depth: DEFAULT_DEPTH,
            may_block: false,
            merges: true,
            knows_extents: false,
            io_timeout: None,
            read_only_latch: ReadOnlyLatch::never(),
        }
    }
}

/// A driver: it starts requests, and finishes each of them once.
///
/// A driver is shared by all hardware queues of its queue and called on any thread. It needs two
/// functions:
///
/// ```
/// use std::sync::Arc;
/// use corewise_blockmq::{BlockDeviceExt, Dispatch, Driver, Geometry, Info, Op, Queue, Started};
/// # use corewise_topology::Machine;
/// # use corewise_workqueue::{WorkerPools, Workqueue};
///
/// /// Reads as zeroes, and forgets what is written.
/// struct Zeroes;
///
/// impl Driver for Zeroes {
///     fn info(&self) -> Info {
///         Info::new("zeroes", Geometry::new(1 << 30))
///     }
///     fn queue_request(&self, _hctx: usize, mut rq: Started) -> Dispatch {
///         if rq.op() == Op::Read {
///             rq.put_zeroes(rq.len());
///         }
///         rq.complete(Ok(())); // here and now; or later, on any thread
///         Dispatch::Started
///     }
/// }
///
/// # let machine = Machine::live()?;
/// # let pools = WorkerPools::new(&machine);
/// # let wq = Workqueue::builder("block").build(&pools)?;
/// let disk = Queue::builder(&machine, Arc::new(Zeroes)).build(&wq);
/// assert_eq!(disk.read_at(4096, 512)?, [0; 512][..]);
/// # drop(disk);
/// # pools.shutdown();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A driver that stands on another device hands on parts of its requests ([`Whole`](crate::Whole)).
/// The example `block_driver` of the `corewise` crate has both kinds: one that completes on a
/// thread of its own, and a filter that changes the bytes.
pub trait Driver: Send + Sync + 'static {
    /// Says what doesn't change while the device lives. The queue asks once, when it is
    /// [built](crate::QueueBuilder::build): there a geometry that can't be is refused.
    ///
    /// A driver around another one hands on what it doesn't change: `Info { depth: 1,
    /// ..self.inner.info() }`. One that stands on a device begins with [`Info::over`].
    fn info(&self) -> Info;

    /// Makes the device longer: to `size` bytes, or, where that is `None`, to what its medium has
    /// by now. The new size; no request lies beyond the old one before this has returned. It is
    /// never made shorter. One call at a time. May block.
    ///
    /// # Errors
    /// `NotSupported`, which is the default; `InvalidInput` for a size that isn't whole blocks, or
    /// less than it has; `NoSpace` for one that the medium hasn't got.
    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        let _ = size;
        let why = format!("a '{}' device cannot grow", self.info().kind);
        Err(IoError::with(IoErrorKind::NotSupported, why))
    }

    /// How the device is, in a few words for people; `None` where there is nothing to tell. Any
    /// context.
    fn condition(&self) -> Option<String> {
        None
    }

    /// Whether data of the device is lost, or may be: flushes fail until it is opened again. Any
    /// context.
    fn has_lost_data(&self) -> bool {
        false
    }

    /// What follows from a file or a folder that the device uses and that isn't in its place, or
    /// isn't what it was, though nothing is lost. The [condition](Self::condition) says what is
    /// wrong. `None`: all are in order. Any context.
    fn displaced(&self) -> Option<Displaced> {
        None
    }

    /// Whether the device lacks changes that were flushed before it was opened: see
    /// [`BlockDevice::is_outdated`](crate::BlockDevice::is_outdated). Any context.
    fn is_outdated(&self) -> bool {
        false
    }

    /// Says which CPUs submit to hardware queue `hctx`: for drivers with threads of their own,
    /// which do well to be near (the kernel's affinity of interrupt vectors). Called when the queue
    /// is built; never on a synthetic machine. May block for a moment.
    fn mapped(&self, hctx: usize, cpus: &[CpuId]) {
        let _ = (hctx, cpus);
    }

    /// Starts a request of hardware queue `hctx` (an index below [`Info::hw_queues`]).
    ///
    /// Called by one thread at a time for each `hctx`, inside an atomic section: it must not block
    /// (but see [`Info::may_block`]). The range is inside the device and in whole blocks, the
    /// operation is one that the geometry allows, all its limits are kept, and a read's memory is
    /// there. There is one flush at a time. A panic here is caught: the request, which its
    /// unwinding drops, completes with an error.
    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch;

    /// Everything that was queued since the last call may be started together now: for drivers
    /// that batch. Called as [`Driver::queue_request`] is, at the end of each pass that started
    /// something.
    fn commit(&self, hctx: usize) {
        let _ = hctx;
    }

    /// A request has been in the driver for longer than its time. The driver may complete it (with
    /// [`IoErrorKind::TimedOut`]: it keeps it, and is told its hardware queue and tag), now or later, or let it go
    /// on. Until this returns the tag isn't given to another request, and a completion that comes
    /// meanwhile takes effect after it.
    ///
    /// Called on a worker, which may block, one call at a time; other requests' timeouts wait
    /// meanwhile. A panic is caught, and counts as [`TimerReturn::ResetTimer`]. Not called before
    /// the dispatch that started the request is over. By default the request is logged, and goes
    /// on.
    fn timeout(&self, rq: &TimedOut<'_>) -> TimerReturn {
        tracing::warn!("{rq}; the driver cannot cancel it");
        TimerReturn::ResetTimer
    }
}

/// How [`Driver::queue_request`] went.
///
/// A driver gives back the very request of this call. Another one, of this queue or of a foreign
/// one, stays the driver's to answer for: it completes with [`IoErrorKind::Gone`], which is logged,
/// and the request of this call counts as started.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Dispatch {
    /// The driver has the request, or has completed it already.
    Started,
    /// The driver can't take it now, for want of something that a request of this hardware queue
    /// gives free when it completes. It goes back to the front, and comes again when one completes
    /// or is submitted; where none is in flight, a worker tries again at once, and then every 3 ms.
    /// (Linux: `BLK_STS_DEV_RESOURCE`.)
    Busy(Started),
    /// The driver can't take it now, for want of something that anybody may have. As `Busy`, and it
    /// comes again after 3 ms at most, whatever is in flight. (Linux: `BLK_STS_RESOURCE`.)
    NoResource(Started),
}

/// A request inside a driver. It has a tag, unique within its hardware queue until it completes.
///
/// Reach its fields through [`Request`]'s methods; the request itself stays the queue's. Dropped
/// without being completed, it completes with [`IoErrorKind::Gone`]: also when a driver's thread
/// dies of a panic.
///
/// Nobody puts another request in its place, since others may have been merged into it:
///
/// ```compile_fail,E0594
/// fn exchange(mut started: corewise_blockmq::Started) {
///     *started = corewise_blockmq::Request::flush();
/// }
/// ```
pub struct Started {
    pending: Option<Box<Pending>>,
}

impl Started {
    /// A request that has its tag.
    #[inline]
    pub(crate) fn new(pending: Box<Pending>) -> Self {
        Self { pending: Some(pending) }
    }

    /// Undoes `new`, for a request that the driver gave back.
    #[inline]
    pub(crate) fn into_pending(mut self) -> Box<Pending> {
        self.pending.take().expect(HELD)
    }

    #[inline]
    fn pending(&self) -> &Pending {
        self.pending.as_ref().expect(HELD)
    }

    /// The request's tag: below [`Info::depth`], and no other request that is inside the driver
    /// through the same hardware queue has it.
    #[inline]
    pub fn tag(&self) -> u32 {
        self.pending().tag
    }

    /// Index of the hardware queue through which the request came.
    #[inline]
    pub fn hctx(&self) -> usize {
        self.pending().hctx
    }

    /// Finishes the request, on any thread. The tag is free **before** the completion function
    /// runs, so whatever the driver keeps by tag has to be cleared before this call. May run the
    /// hardware queue, and so call [`Driver::queue_request`] on this thread: so hold no lock that
    /// that takes. To drop it does the same; `drop(mutex.lock().unwrap().take())` holds the lock
    /// meanwhile, so take it out in a statement of its own. Deep in other completions it may end a
    /// moment later, as [`Request::complete`] says.
    #[inline]
    pub fn complete(mut self, result: Result<(), IoError>) {
        self.finish(result);
    }

    /// Gives the request back, to be started once more: for a driver that had it and can't go on,
    /// as when a path to the device is lost. It goes to the front of its hardware queue, and a
    /// worker runs that. A request that the driver has put into a read so far stays put: see
    /// [`Request::filled`]. Any thread. (Linux: `blk_mq_requeue_request`.)
    pub fn requeue(mut self) {
        if let Some(pending) = self.pending.take() {
            pending.returned(Verdict::Requeue);
        }
    }

    /// Puts something of the driver's beside the request, to be found where it is taken out of a
    /// list.
    #[inline]
    pub fn set_owner(&mut self, owner: Arc<dyn Any + Send + Sync>) {
        if let Some(pending) = &mut self.pending {
            pending.owner = Some(owner);
        }
    }

    /// Takes back what [`Started::set_owner`] put beside the request.
    #[inline]
    pub fn take_owner(&mut self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.pending.as_mut()?.owner.take()
    }

    /// Returns whether this is the request that is late.
    pub fn is(&self, late: &LateOne) -> bool {
        let pending = self.pending();
        LateOne::of(pending.core.address(), pending.hctx, pending.tag) == *late
    }

    /// Whether it is the one that `core` has given out through `hctx` under `tag`: nothing else has
    /// the three while the call lasts that gave it out.
    pub(crate) fn is_of(&self, core: &Core, hctx: usize, tag: u32) -> bool {
        let pending = self.pending();
        ptr::eq(&*pending.core, core) && pending.hctx == hctx && pending.tag == tag
    }

    /// Ends a request that a driver gave back in another one's place.
    #[cold]
    pub(crate) fn refuse(mut self, to: &str) {
        tracing::error!(
            queue = %self.pending().core.name, hctx = self.hctx(), tag = self.tag(), to,
            "a driver gave this request back in place of the one that it was called with"
        );
        self.finish(Err(IoError::with(
            IoErrorKind::Gone,
            "the driver gave this request back in place of the one that it was called with; give that one back, and \
             complete or requeue this one",
        )));
    }

    #[inline]
    pub(crate) fn rq_mut(&mut self) -> &mut Request {
        self.pending.as_mut().expect(HELD).rq_mut()
    }

    #[inline]
    fn finish(&mut self, result: Result<(), IoError>) {
        if let Some(pending) = self.pending.take() {
            pending.returned(Verdict::Ended(result));
        }
    }
}

/// Why the expectations above hold.
const HELD: &str = "only complete, requeue and into_pending empty it, and they consume it";

impl Deref for Started {
    type Target = Request;

    #[inline]
    fn deref(&self) -> &Request {
        self.pending().rq()
    }
}

impl Drop for Started {
    #[inline]
    fn drop(&mut self) {
        if self.pending.is_some() {
            self.finish(Err(IoError::with(
                IoErrorKind::Gone,
                "the driver dropped the request without completing it",
            )));
        }
    }
}

/// A request in the [`Inbox`](corewise_sync::inbox::Inbox) of a driver's own thread. It travels in
/// its own box, so that costs no allocation.
#[derive(Debug)]
pub struct Queued(pub Started);

// SAFETY: a box is unique, and stays in place from `into_raw` to `from_raw`. Its link is the
// driver's while the driver has the request: the queue uses it before and after.
unsafe impl Node for Queued {
    type Target = Pending;

    #[inline]
    fn into_raw(self) -> NonNull<Pending> {
        Node::into_raw(self.0.into_pending())
    }

    #[inline]
    unsafe fn from_raw(raw: NonNull<Pending>) -> Self {
        // SAFETY: the caller passes what `into_raw` gave up, once. It was inside the driver.
        Self(Started::new(unsafe { Node::from_raw(raw) }))
    }

    #[inline]
    unsafe fn link<'a>(raw: NonNull<Pending>) -> &'a Link {
        // SAFETY: as the caller says.
        unsafe { <Box<Pending> as Node>::link(raw) }
    }
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pending {
            Some(pending) => f
                .debug_struct("Started")
                .field("tag", &pending.tag)
                .field("request", pending.rq())
                .finish(),
            None => f.write_str("Started(done)"),
        }
    }
}
