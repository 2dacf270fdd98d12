//! Memory and null devices of a manifest's block size.

use std::sync::Arc;

use corewise::blockmq::{Dispatch, Driver, Geometry, Info, Started};
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
    fn info(&self) -> Info {
        let inner = self.inner.info();
        let block_size = inner.geometry.block_size.max(self.block_size);
        let preferred = inner.geometry.preferred.max(block_size);
        Info { geometry: Geometry { block_size, preferred, ..inner.geometry }, ..inner }
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        self.inner.queue_request(hctx, rq)
    }

    fn commit(&self, hctx: usize) {
        self.inner.commit(hctx);
    }
}
