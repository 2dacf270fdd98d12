//! The driver `overlay`: a device whose changes go to a file, and whose other bytes are those of a
//! base that nobody changes. Many overlays may share a base.
//!
//! `README.md` beside this file shows the file, and argues what a crash leaves behind.

pub(crate) mod block_locks;
mod change;
mod commit;
mod fetch;
mod header;
mod header_writes;
mod map;
mod open;
mod requests;

use std::sync::Arc;

use corewise_blockmq::{
    BlockDevice, Dispatch, Displaced, Driver, Geometry, Info, IoError, IoErrorKind, Queue, Remap,
    Request, Started,
};
use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::panics::caught;

use block_locks::BlockLocks;
use commit::Commits;
pub use fetch::FetchPolicy;
use fetch::Fetcher;
use header::Layout;
use header_writes::HeaderWrites;
use map::Map;

/// An overlay.
///
/// - A block that was never changed is read from the base. A change makes its blocks own: they lie
///   in the file from then on, also if they were trimmed or zeroed.
/// - A first change of a part of a block copies the rest of that block from the base.
/// - When a flush has completed, all changes before it are durable, and so is the map that tells
///   own blocks from others. Changes that weren't flushed may be lost when the process is killed:
///   their blocks are then the base's again.
/// - The base has to stay as it is. Its size and samples of its content are verified at each open.
pub struct Overlay {
    inner: Arc<OverlayState>,
}

struct OverlayState {
    file: Arc<Queue>,
    /// L: is the lock, held for a look; guards the base. `None`: every block is own.
    base: SpinLock<Option<Arc<dyn BlockDevice>>>,
    /// Bytes of the base; 0 without one.
    base_size: u64,
    layout: Layout,
    geometry: Geometry,
    /// A: the size in bytes; it only grows. Release when the map has room for it, Acquire.
    size: AtomicU64,
    map: Map,
    locks: BlockLocks,
    commits: Commits,
    header: HeaderWrites,
    fetch: Fetcher,
    observer: Option<Box<OverlayObserver>>,
}

/// The listener to an overlay's events.
type OverlayObserver = dyn Fn(&OverlayEvent) + Send + Sync;

/// An event of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverlayEvent {
    /// All blocks were fetched: the overlay needs its base no more.
    Fetched,
    /// The background can't fetch a block. It tries again, and tells nothing more until it
    /// succeeds.
    FetchFailed {
        /// The reason.
        error: IoError,
    },
}

/// The state of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverlayStatus {
    /// Bytes of own blocks; `None` as long as they are being counted.
    pub own: Option<u64>,
    /// Bytes of the overlay.
    pub size: u64,
    /// True if it has a base.
    pub has_base: bool,
    /// True while all blocks of the base are being fetched.
    pub fetching: bool,
}

/// The options of an overlay; see [`Overlay::open`].
#[non_exhaustive]
pub struct OverlayOptions {
    /// Bytes of a block: a power of two from 4 KiB to 1 MiB. The map takes a bit for each block, in
    /// memory too. `None`, the default: those of the overlay; 4 KiB for a new one.
    pub block_size: Option<u32>,
    /// Bytes of a new overlay, at least those of its base; `None`, the default: the same. Bytes
    /// behind the base's end are zero.
    pub size: Option<u64>,
    /// Blocks that are fetched from the base; none by default.
    pub fetch: FetchPolicy,
    /// Most bytes a second that the background, or a [flatten](Overlay::flatten), fetches; default
    /// 100 MiB.
    pub fetch_rate: u64,
    /// Reason why nobody may write to the base, so that a commit that a crash interrupted can't be
    /// completed; none by default.
    pub base_in_use: Option<String>,
    observer: Option<Box<OverlayObserver>>,
}

impl Default for OverlayOptions {
    fn default() -> Self {
        Self {
            block_size: None,
            size: None,
            fetch: FetchPolicy::Never,
            fetch_rate: 100 << 20,
            base_in_use: None,
            observer: None,
        }
    }
}

impl OverlayOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the bytes of a block of a new overlay, and those that an existing one must have.
    #[must_use]
    pub fn block_size(mut self, bytes: Option<u32>) -> Self {
        self.block_size = bytes;
        self
    }

    /// Sets the bytes of the overlay. One that is there grows to that size, and never shrinks.
    /// Without this, a new one has the size of its base.
    #[must_use]
    pub fn size(mut self, bytes: Option<u64>) -> Self {
        self.size = bytes;
        self
    }

    /// Sets which blocks are fetched from the base, and at most how many bytes a second.
    #[must_use]
    pub fn fetch(mut self, fetch: FetchPolicy, rate: u64) -> Self {
        (self.fetch, self.fetch_rate) = (fetch, rate);
        self
    }

    /// Sets the reason why nobody may write to the base. [`Overlay::open`] then refuses an overlay
    /// whose commit a crash interrupted.
    #[must_use]
    pub fn base_in_use(mut self, why: Option<String>) -> Self {
        self.base_in_use = why;
        self
    }

    /// Sets the listener to events. It is called on a worker, which may block; nothing is fetched
    /// meanwhile. A panic in it is caught. It is dropped with the overlay.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(&OverlayEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }
}

impl OverlayState {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn tell(&self, event: &OverlayEvent) {
        let Some(observer) = &self.observer else { return };
        if caught(|| observer(event)).is_none() {
            tracing::error!("the observer of an overlay panicked");
        }
    }

    /// Returns the base, for a block that isn't own.
    fn base(&self) -> Result<Arc<dyn BlockDevice>, IoError> {
        self.base.lock().clone().ok_or_else(|| {
            let why = "the overlay has let its base go, and a block that it lacks was asked for";
            IoError::with(IoErrorKind::Gone, why)
        })
    }
}

impl Driver for Overlay {
    fn info(&self) -> Info {
        let state = &self.inner;
        let over = Info::over("overlay", &*state.file);
        let geometry = Geometry { size: state.size(), ..state.geometry };
        Info { geometry, knows_extents: true, remaps: true, ..over }
    }

    fn condition(&self) -> Option<String> {
        self.inner.file.driver().condition()
    }

    fn has_lost_data(&self) -> bool {
        self.inner.file.driver().has_lost_data()
    }

    fn displaced(&self) -> Option<Displaced> {
        self.inner.file.driver().displaced()
    }

    fn is_outdated(&self) -> bool {
        self.inner.file.is_outdated()
    }

    /// Grows the overlay and its file. Bytes behind the base's end are zero.
    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        self.inner.grow(size)
    }

    fn remap(&self, rq: &Request) -> Option<Remap<'_>> {
        self.inner.own_place(rq).map(|offset| Remap { device: &*self.inner.file, offset })
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.inner.start(rq);
        Dispatch::Started
    }
}
