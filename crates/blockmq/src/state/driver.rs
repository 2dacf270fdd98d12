//! The interfaces on both sides of a [`Queue`](crate::Queue): the block device that its users see,
//! and the driver behind it, which starts requests.

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

/// Requests that each hardware queue may have in the driver at once if the driver sets no number:
/// the kernel's `BLKDEV_DEFAULT_RQ`.
pub const DEFAULT_DEPTH: u32 = 128;

/// The consequences of a device's file or folder that is displaced or was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The remedy: a sentence for people, without its full stop.
    pub todo: &'static str,
    /// True if changes and flushes of the device fail until that is done.
    pub blocks_changes: bool,
}

/// The description of a driver and its device. A queue asks for it once, when it is built.
///
/// [`Info::new`] sets what every driver needs, and the default of each other field. A driver writes
/// what is different:
///
/// ```
/// # use corewise_blockmq::{Geometry, Info};
/// let info = Info { depth: 32, merges: false, ..Info::new("disk", Geometry::new(1 << 30)) };
/// # assert_eq!((info.hw_queues, info.depth), (1, 32));
/// ```
#[derive(Clone, Debug)]
pub struct Info {
    /// The kind of the driver, in a word: `"memory"`, `"file"`. The log shows it, and it is the
    /// queue's name if its builder gives none.
    pub kind: &'static str,
    /// The device's size and abilities, by which the queue checks and splits requests. The size is
    /// that at the time of the call; later the device only [grows](Driver::grow).
    pub geometry: Geometry,
    /// Number of hardware queues that the driver has room for, at least 1, which is the default.
    /// The queue makes that many, but no more than there are CPUs: `usize::MAX` means one for each
    /// CPU.
    pub hw_queues: usize,
    /// Number of requests that each hardware queue may have in the driver at once: 1 to 10 240, the
    /// kernel's `BLK_MQ_MAX_DEPTH`. Values outside are clamped. The default is [`DEFAULT_DEPTH`].
    /// The queue makes that many tags, unless its [builder](crate::QueueBuilder::depth) wants
    /// fewer.
    pub depth: u32,
    /// True if [`Driver::queue_request`] and [`Driver::commit`] may block; `false` by default. The
    /// queue then calls them on workers only, outside of atomic sections, and each request costs a
    /// switch to a worker. Around each blocking call, the driver tells the worker's pool by
    /// [`context::blocking`](corewise_sync::context::blocking). (The kernel's `BLK_MQ_F_BLOCKING`.)
    pub may_block: bool,
    /// True if the driver gains when one large request replaces many small adjacent ones; `true` by
    /// default. The queue then merges waiting requests.
    pub merges: bool,
    /// True if the driver may [name the place](Driver::remap) of a request on another device; false
    /// by default. The queue asks only such a driver.
    pub remaps: bool,
    /// True if the driver knows which parts of the device are allocated and which read as zeroes;
    /// `false` by default. If it is false, the queue answers such questions itself: all counts as
    /// data. A filter doesn't inherit the flag from the device below: its bytes may differ from
    /// those there.
    pub knows_extents: bool,
    /// The longest time that a request may be in the driver before the queue calls
    /// [`Driver::timeout`]. `None`, the default: unlimited.
    /// [`QueueBuilder::timeout`](crate::QueueBuilder::timeout) goes before it.
    pub io_timeout: Option<Duration>,
    /// The latch that is set once the device can't be changed any more, though its geometry says
    /// so; by default it is [never](ReadOnlyLatch::never) set. Once it is set, the queue's geometry
    /// is read-only. Requests still go to the driver, whose error says why it refuses them.
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
            remaps: false,
            knows_extents: false,
            io_timeout: None,
            read_only_latch: ReadOnlyLatch::never(),
        }
    }
}

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

/// A driver. It starts requests, and finishes each of them once.
///
/// All hardware queues of a queue share its driver, and call it on any thread. A driver needs two
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
/// A driver over another device passes on parts of its requests ([`Whole`](crate::Whole)). The
/// example `block_driver` of the `corewise` crate has both kinds: one that completes on a thread of
/// its own, and a filter that changes the bytes.
pub trait Driver: Send + Sync + 'static {
    /// Describes the driver and its device. The description doesn't change while the device lives.
    /// The queue asks once, when it is [built](crate::QueueBuilder::build), and refuses an
    /// impossible geometry.
    ///
    /// A driver around another one passes on what it doesn't change:
    /// `Info { depth: 1, ..self.inner.info() }`. A driver over a device begins with [`Info::over`].
    fn info(&self) -> Info;

    /// Grows the device to `size` bytes, or, if that is `None`, to the present size of its medium,
    /// and returns the new size. No request reaches beyond the old size before this has returned. A
    /// device never shrinks. One call at a time. May block.
    ///
    /// # Errors
    /// `NotSupported`, which is the default; `InvalidInput` if the size isn't whole blocks or is
    /// below the present one; `NoSpace` if the medium is smaller.
    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        let _ = size;
        let why = format!("a '{}' device cannot grow", self.info().kind);
        Err(IoError::with(IoErrorKind::NotSupported, why))
    }

    /// Returns the device's condition in a few words for people; `None` if all is well. Any
    /// context.
    fn condition(&self) -> Option<String> {
        None
    }

    /// Returns true if data of the device is lost, or may be. Flushes then fail until the device is
    /// opened again. Any context.
    fn has_lost_data(&self) -> bool {
        false
    }

    /// Returns the consequences of a file or folder of the device that is displaced or was
    /// replaced, though nothing is lost. The [condition](Self::condition) describes the fault.
    /// `None`: all are in order. Any context.
    fn displaced(&self) -> Option<Displaced> {
        None
    }

    /// Returns true if the device lacks changes that were flushed before it was opened: see
    /// [`BlockDevice::is_outdated`](crate::BlockDevice::is_outdated). Any context.
    fn is_outdated(&self) -> bool {
        false
    }

    /// Tells which CPUs submit to hardware queue `hctx`. Drivers with threads of their own can
    /// place these near the CPUs (the kernel's affinity of interrupt vectors). Called when the
    /// queue is built; never on a synthetic machine. May block for a moment.
    fn mapped(&self, hctx: usize, cpus: &[CpuId]) {
        let _ = (hctx, cpus);
    }

    /// Starts a request of hardware queue `hctx` (an index below [`Info::hw_queues`]).
    ///
    /// One thread at a time calls this for each `hctx`, inside an atomic section: it must not block
    /// (but see [`Info::may_block`]). The range is inside the device and in whole blocks, the
    /// geometry allows the operation, the request keeps all limits, and a read has its memory. One
    /// flush is in flight at a time. A panic here is caught: its unwinding drops the request, which
    /// completes with an error.
    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch;

    /// Returns the place of a request on another device, if all of its bytes lie there in one
    /// piece. The queue then submits it there itself, with the same operation and flags, and
    /// doesn't call [`Driver::queue_request`]. The request ends as that one does. This is much
    /// cheaper: the request takes no tag, and no memory is allocated. `None`, the default: the
    /// driver gets the request. (Linux: the bio-based drivers of the device mapper.)
    ///
    /// The queue calls this as `queue_request`, with the same promises, and submits the request
    /// before the next one. It may ask twice about one request. It doesn't ask about flushes,
    /// requests for extents and merged requests. A queue asks only a driver that says that it
    /// [remaps](Info::remaps), and none that [may block](Info::may_block). It never asks if it has
    /// a [timeout](crate::QueueBuilder::timeout), a [scheduler](crate::QueueBuilder::scheduler), or
    /// its own [depth](crate::QueueBuilder::depth) or [tags](crate::QueueBuilder::tags): these are
    /// about requests with tags. A panic here is caught, and fails the request.
    fn remap(&self, rq: &Request) -> Option<Remap<'_>> {
        let _ = rq;
        None
    }

    /// Starts together everything that was queued since the last call: for drivers that batch.
    /// Called as [`Driver::queue_request`] is, at the end of each pass that started something.
    fn commit(&self, hctx: usize) {
        let _ = hctx;
    }

    /// Handles a request that has been in the driver for longer than its time. The driver, which
    /// keeps the request, may complete it now or later (with [`IoErrorKind::TimedOut`]), or let it
    /// go on. `rq` names its hardware queue and tag. Until this returns, no other request gets the
    /// tag, and a completion that comes meanwhile takes effect after it. Called on a worker, which
    /// may block, one call at a time; other requests' timeouts wait meanwhile. A panic is caught,
    /// and counts as [`TimerReturn::ResetTimer`]. Never called before the dispatch that started the
    /// request is over. The default logs the request and lets it go on.
    fn timeout(&self, rq: &TimedOut<'_>) -> TimerReturn {
        tracing::warn!("{rq}; the driver cannot cancel it");
        TimerReturn::ResetTimer
    }
}

/// The place of a request's bytes on another device: see [`Driver::remap`](crate::Driver::remap).
pub struct Remap<'a> {
    /// The device that has all of the bytes.
    pub device: &'a dyn BlockDevice,
    /// The place of the first byte there.
    pub offset: u64,
}

impl fmt::Debug for Remap<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remap")
            .field("device", &self.device.name())
            .field("offset", &self.offset)
            .finish()
    }
}

/// The outcome of [`Driver::queue_request`].
///
/// A driver gives back the very request of this call. If it gives back another one, of this queue
/// or of a foreign one, that completes with [`IoErrorKind::Gone`], which is logged. The request of
/// this call then counts as started.
#[derive(Debug)]
#[must_use]
#[non_exhaustive]
pub enum Dispatch {
    /// The driver has the request, or has completed it already.
    Started,
    /// The driver lacks something that a request of this hardware queue frees when it completes.
    /// The request goes back to the front, and comes again when one completes or is submitted. If
    /// none is in flight, a worker retries at once, and then every 3 ms. (Linux:
    /// `BLK_STS_DEV_RESOURCE`.)
    Busy(Started),
    /// The driver lacks something that any other code may hold. As with `Busy`, but the request
    /// comes again after 3 ms at most, whatever is in flight. (Linux: `BLK_STS_RESOURCE`.)
    NoResource(Started),
}

/// A request inside a driver. It has a tag, unique within its hardware queue until it completes.
///
/// Its fields are reached through [`Request`]'s methods; the request itself stays the queue's.
/// Dropped without being completed, it completes with [`IoErrorKind::Gone`], also when a driver's
/// thread panics.
///
/// No code can put another request in its place, since others may have been merged into it:
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
    /// Wraps a request that has its tag.
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

    /// Returns the request's tag, which is below [`Info::depth`]. No other request that is inside
    /// the driver through the same hardware queue has it.
    #[inline]
    pub fn tag(&self) -> u32 {
        self.pending().tag
    }

    /// Returns the index of the hardware queue through which the request came.
    #[inline]
    pub fn hctx(&self) -> usize {
        self.pending().hctx
    }

    /// Finishes the request, on any thread. The tag is free **before** the completion function
    /// runs, so the driver clears what it keeps by tag before this call. This may run the hardware
    /// queue, and so call [`Driver::queue_request`] on this thread: hold no lock that
    /// `queue_request` takes. Dropping the request does the same.
    /// `drop(mutex.lock().unwrap().take())` holds the lock meanwhile, so take the request out in a
    /// statement of its own. Deep in other completions it may end a moment later, as
    /// [`Request::complete`] says.
    #[inline]
    pub fn complete(mut self, result: Result<(), IoError>) {
        self.finish(result);
    }

    /// Gives the request back, to be started once more: for a driver that can't go on, as when a
    /// path to the device is lost. The request goes to the front of its hardware queue, and a
    /// worker runs that. Bytes that the driver has put into a read so far stay: see
    /// [`Request::filled`]. Any thread. (Linux: `blk_mq_requeue_request`.)
    pub fn requeue(mut self) {
        if let Some(pending) = self.pending.take() {
            pending.returned(Verdict::Requeue);
        }
    }

    /// Keeps a value of the driver's beside the request, to be found where that is taken out of a
    /// list.
    #[inline]
    pub fn set_owner(&mut self, owner: Arc<dyn Any + Send + Sync>) {
        if let Some(pending) = &mut self.pending {
            pending.owner = Some(owner);
        }
    }

    /// Takes back the value that [`Started::set_owner`] put beside the request.
    #[inline]
    pub fn take_owner(&mut self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.pending.as_mut()?.owner.take()
    }

    /// Returns whether this is the request that is late.
    pub fn is(&self, late: &LateOne) -> bool {
        let pending = self.pending();
        LateOne::of(pending.core.address(), pending.hctx, pending.tag) == *late
    }

    /// Returns true if `core` has given out this request through `hctx` under `tag`. No other
    /// request has all three while the call lasts that gave it out.
    pub(crate) fn is_of(&self, core: &Core, hctx: usize, tag: u32) -> bool {
        let pending = self.pending();
        ptr::eq(&*pending.core, core) && pending.hctx == hctx && pending.tag == tag
    }

    /// Ends a request that a driver gave back in place of another one.
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

/// The reason why the expectations above hold.
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
/// its own box, so the inbox allocates nothing.
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
