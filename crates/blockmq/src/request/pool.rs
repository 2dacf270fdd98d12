//! Buffer pools: many buffers in one piece of memory, which a device can register beforehand.

use corewise_topology::{CpuId, current_cpu};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::sys::cpus;

use super::buffer::AlignedBuf;
use crate::tags::TagSet;

/// A pool of aligned buffers in one piece of memory. Clones are the same pool; the memory is freed
/// when the last of them and the last buffer are gone.
#[derive(Clone)]
pub struct BufferPool {
    region: Arc<Region>,
}

pub(super) struct Region {
    base: NonNull<u8>,
    layout: Layout,
    /// Number of bytes from one buffer to the next.
    stride: usize,
    capacity: usize,
    /// The set of the buffers that are taken.
    taken: TagSet,
}

// SAFETY: it owns its memory, and only the owner of a tag reaches that tag's piece.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl BufferPool {
    /// Creates a pool of `buffers` buffers (at least 1) of `capacity` bytes each (at least 1), at
    /// multiples of `align`.
    ///
    /// # Panics
    /// If `align` is no power of two, or the whole is more than half of the address space.
    pub fn new(buffers: u32, capacity: usize, align: usize) -> Self {
        const SANE: &str = "an alignment is a power of two, and a pool fits the address space";
        let (buffers, capacity) = (buffers.max(1), capacity.max(1));
        let stride = capacity.checked_next_multiple_of(align).expect(SANE);
        let bytes = stride.checked_mul(buffers as usize).expect(SANE);
        let layout = Layout::from_size_align(bytes, align).expect(SANE);
        // SAFETY: the layout isn't empty.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let taken = TagSet::new(buffers, cpus());
        Self { region: Arc::new(Region { base, layout, stride, capacity, taken }) }
    }

    /// Returns an empty buffer, which goes back to the pool when it is dropped; `None` if all are
    /// taken. Never blocks.
    pub fn get(&self) -> Option<AlignedBuf> {
        let tag = self.region.taken.try_get(here())?;
        Some(AlignedBuf::of(Arc::clone(&self.region), tag))
    }

    /// Returns the number of buffers.
    pub fn buffers(&self) -> u32 {
        self.region.taken.depth()
    }

    /// Returns the number of bytes that each buffer has room for.
    pub fn capacity(&self) -> usize {
        self.region.capacity
    }
}

/// Returns the CPU that this runs on, which spreads callers over the tags.
fn here() -> usize {
    current_cpu().map_or(0, CpuId::index)
}

impl Region {
    /// Returns the memory of a buffer, which its tag's owner has.
    pub(super) fn place(&self, tag: u32) -> NonNull<u8> {
        // SAFETY: tags are below the number of buffers, so this lies inside.
        unsafe { self.base.add(tag as usize * self.stride) }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn align(&self) -> usize {
        self.layout.align()
    }

    pub(super) fn put(&self, tag: u32) {
        self.taken.put(here(), tag);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once; each buffer holds the region.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Memory of the caller that is cut into buffers. Clones are the same memory, whose owner is
/// dropped with the last of them and the last buffer.
#[derive(Clone)]
pub struct BufferMemory {
    parts: Arc<MemoryParts>,
}

pub(super) struct MemoryParts {
    pub(super) align: usize,
    pub(super) capacity: usize,
    _owner: Box<dyn Send + Sync>,
}

impl BufferMemory {
    /// Creates the memory of buffers of `capacity` bytes each, at multiples of `align`.
    pub fn new(capacity: usize, align: usize, owner: Box<dyn Send + Sync>) -> Self {
        Self { parts: Arc::new(MemoryParts { align, capacity, _owner: owner }) }
    }

    /// Returns the empty buffer at `base`.
    ///
    /// # Safety
    /// `base` is a multiple of the alignment, and begins bytes for a buffer that stay valid for
    /// reads and writes until the owner is dropped. While the buffer is there, nothing but its
    /// holder, and the system on its behalf, accesses them.
    pub unsafe fn buffer(&self, base: NonNull<u8>) -> AlignedBuf {
        AlignedBuf::within(base, Arc::clone(&self.parts))
    }
}

impl fmt::Debug for BufferMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferMemory").field("capacity", &self.parts.capacity).finish()
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("buffers", &self.buffers())
            .field("capacity", &self.capacity())
            .field("taken", &self.region.taken.in_use())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_a_pool_lie_apart_and_come_back() {
        let pool = BufferPool::new(3, 700, 512);
        let mut all: Vec<AlignedBuf> = std::iter::from_fn(|| pool.get()).collect();
        assert_eq!(all.len(), 3);
        for (n, buffer) in all.iter_mut().enumerate() {
            assert!(buffer.as_ptr().addr() % 512 == 0 && buffer.capacity() == 700);
            buffer.extend_from_slice(&[n as u8; 700]);
        }
        assert!(all.iter().enumerate().all(|(n, b)| b.iter().all(|&byte| byte == n as u8)));
        drop(all.pop());
        assert!(pool.get().unwrap().is_empty(), "it comes back empty");
    }

    #[test]
    fn a_buffer_keeps_the_memory_of_its_pool() {
        let mut buffer = BufferPool::new(1, 16, 16).get().unwrap();
        buffer.extend_from_slice(b"here");
        assert_eq!(&buffer[..], b"here");
    }
}
