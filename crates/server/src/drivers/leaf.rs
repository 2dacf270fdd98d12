//! Memory and null devices of a manifest's block size.

use std::sync::Arc;

use corewise::blockmq::{Dispatch, Driver, Geometry, Started};
use corewise::device::ProbeError;
use corewise::drivers::{Memory, Null};

/// Bytes in memory.
pub(super) fn memory(size: u64, block_size: u32) -> Result<Arc<dyn Driver>, ProbeError> {
    let memory = Memory::new(size).map_err(|error| {
        ProbeError::failed(format!("cannot allocate {size} bytes of memory: {error}"))
    })?;
    Ok(Arc::new(Coarse { inner: memory, block_size }))
}

/// Nothing at all.
pub(super) fn null(size: u64, block_size: u32) -> Arc<dyn Driver> {
    Arc::new(Coarse { inner: Null::new(size), block_size })
}

/// A driver that shows larger blocks than it needs.
struct Coarse<D> {
    inner: D,
    /// A power of two, at least the inner one.
    block_size: u32,
}

impl<D: Driver> Driver for Coarse<D> {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn geometry(&self) -> Geometry {
        let inner = self.inner.geometry();
        let block_size = inner.block_size.max(self.block_size);
        Geometry { block_size, preferred: inner.preferred.max(block_size), ..inner }
    }

    fn hw_queues(&self) -> usize {
        self.inner.hw_queues()
    }

    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    fn merges(&self) -> bool {
        self.inner.merges()
    }

    fn knows_extents(&self) -> bool {
        self.inner.knows_extents()
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        self.inner.queue_request(hctx, rq)
    }

    fn commit(&self, hctx: usize) {
        self.inner.commit(hctx);
    }
}
