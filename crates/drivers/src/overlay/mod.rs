//! The driver `overlay`: a device whose changes go to a file, and whose other bytes are those of a
//! base that nobody changes. Many overlays may share a base.
//!
//! `README.md` beside this file shows the file, and argues what a crash leaves behind.

mod block_locks;
mod commit;
mod header;
mod map;
mod open;
mod requests;

use std::sync::Arc;

use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Geometry, Info, IoError, IoErrorKind, Started,
};
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::{Mutex, SpinLock};

use block_locks::BlockLocks;
use commit::Commits;
use header::{Header, Layout};
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
    file: Arc<dyn BlockDevice>,
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
    /// L: is the lock, held while a header is written; guards the newest one.
    header: Mutex<Header>,
    grow_file: Option<Box<GrowFile>>,
}

/// The function that makes an overlay's file longer, to this size.
type GrowFile = dyn Fn(u64) -> Result<u64, IoError> + Send + Sync;

/// The options of an overlay; see [`Overlay::open`].
#[non_exhaustive]
pub struct OverlayOptions {
    /// Bytes of a block of a new overlay: a power of two from 4 KiB, the default, to 1 MiB. The map
    /// takes a bit for each block, in memory too.
    pub block_size: u32,
    /// Bytes of a new overlay, at least those of its base; `None`, the default: the same. Bytes
    /// behind the base's end are zero.
    pub size: Option<u64>,
    grow_file: Option<Box<GrowFile>>,
}

impl Default for OverlayOptions {
    fn default() -> Self {
        Self { block_size: 4096, size: None, grow_file: None }
    }
}

impl OverlayOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the bytes of a block of a new overlay.
    #[must_use]
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_size = bytes;
        self
    }

    /// Sets the bytes of a new overlay.
    #[must_use]
    pub fn size(mut self, bytes: Option<u64>) -> Self {
        self.size = bytes;
        self
    }

    /// Sets the function that makes the file longer, which a growing overlay needs. It may block.
    #[must_use]
    pub fn grow_file(
        mut self,
        grow: impl Fn(u64) -> Result<u64, IoError> + Send + Sync + 'static,
    ) -> Self {
        self.grow_file = Some(Box::new(grow));
        self
    }
}

impl OverlayState {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
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
        Info { geometry, knows_extents: true, ..over }
    }

    /// Grows the overlay and its file. Bytes behind the base's end are zero.
    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        self.inner.grow(size)
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.inner.start(rq);
        Dispatch::Started
    }
}
