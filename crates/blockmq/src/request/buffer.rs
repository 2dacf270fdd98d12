//! Buffers: the memory that a caller lends to a request, and gets back at its end.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};

use super::extents::Extents;
use super::pool::{MemoryParts, Region};

/// Memory that a caller lends to a request. It is never copied: a device reads from it or writes to
/// it in place.
///
/// A read appends to the buffer's bytes, which stay in front: so a caller may put the head of a
/// reply there first.
#[derive(Debug)]
#[non_exhaustive]
pub enum Buffer {
    /// Shared bytes that are never changed: for writes only.
    Bytes(Bytes),
    /// Bytes that grow: a write sends the buffer's bytes, a read appends to them.
    BytesMut(BytesMut),
    /// Bytes as `BytesMut`, in memory of a certain alignment, which a device without a cache of its
    /// own asks for.
    Aligned(AlignedBuf),
}

impl Buffer {
    /// Returns the bytes that it holds.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Buffer::Bytes(bytes) => bytes,
            Buffer::BytesMut(bytes) => bytes,
            Buffer::Aligned(bytes) => bytes,
        }
    }

    /// Returns how many bytes it holds.
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Returns true if it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the room behind its bytes, at least `len` bytes. That may mean a new allocation,
    /// except for an [`AlignedBuf`], which never moves. The room is aligned to `align`, a power of
    /// two, if nothing is in front. `None` if there is no such room.
    pub(crate) fn room(&mut self, len: usize, align: usize) -> Option<&mut [MaybeUninit<u8>]> {
        let whole = self.len().checked_add(len)?.checked_add(align)?;
        isize::try_from(whole).ok()?;
        let room = match self {
            Buffer::Bytes(_) => return None,
            Buffer::BytesMut(bytes) => {
                if align > 1 && bytes.capacity() == 0 {
                    *bytes = aligned(len, align);
                }
                bytes.reserve(len);
                bytes.spare_capacity_mut()
            }
            Buffer::Aligned(bytes) => bytes.spare_capacity_mut(),
        };
        room.get_mut(..len)
    }

    /// Records that `n` bytes behind its own have been filled.
    ///
    /// # Safety
    /// They are initialized, and within the room.
    pub(crate) unsafe fn grow(&mut self, n: usize) {
        match self {
            Buffer::Bytes(_) => {}
            // SAFETY: the caller says that the bytes are there and initialized.
            Buffer::BytesMut(bytes) => unsafe { bytes.set_len(bytes.len() + n) },
            // SAFETY: as above.
            Buffer::Aligned(bytes) => unsafe { bytes.set_len(bytes.len() + n) },
        }
    }
}

/// Creates an empty buffer whose room for `len` bytes begins at a multiple of `align`.
fn aligned(len: usize, align: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(len + align - 1);
    let pad = bytes.as_ptr().align_offset(align);
    bytes.resize(pad, 0);
    bytes.advance(pad);
    bytes
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Buffer::Bytes(bytes)
    }
}

impl From<BytesMut> for Buffer {
    fn from(bytes: BytesMut) -> Self {
        Buffer::BytesMut(bytes)
    }
}

impl From<AlignedBuf> for Buffer {
    fn from(bytes: AlignedBuf) -> Self {
        Buffer::Aligned(bytes)
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Buffer::Bytes(bytes.into())
    }
}

impl From<&'static [u8]> for Buffer {
    fn from(bytes: &'static [u8]) -> Self {
        Buffer::Bytes(Bytes::from_static(bytes))
    }
}

/// The buffers of a request.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Payload {
    /// The payload of a flush, discard or write-zeroes, or of a part of another request: no buffer.
    #[default]
    None,
    /// One buffer.
    One(Buffer),
    /// Several buffers, in the order of the device's bytes.
    Many(Vec<Buffer>),
    /// The extents of the range, and no buffer.
    Extents(Extents),
}

impl Payload {
    /// Returns the buffers, in order.
    pub fn buffers(&self) -> &[Buffer] {
        match self {
            Payload::None | Payload::Extents(_) => &[],
            Payload::One(buffer) => std::slice::from_ref(buffer),
            Payload::Many(buffers) => buffers,
        }
    }

    pub(crate) fn buffers_mut(&mut self) -> &mut [Buffer] {
        match self {
            Payload::None | Payload::Extents(_) => &mut [],
            Payload::One(buffer) => std::slice::from_mut(buffer),
            Payload::Many(buffers) => buffers,
        }
    }
}

/// Bytes in memory of a certain alignment and a fixed size, its own or that of a
/// [`BufferPool`](crate::BufferPool).
///
/// ```
/// use corewise_blockmq::AlignedBuf;
///
/// let mut buffer = AlignedBuf::new(4096, 512);
/// buffer.extend_from_slice(b"hello");
/// assert_eq!(&buffer[..], b"hello");
/// assert!(buffer.as_ptr().addr() % 512 == 0);
/// ```
pub struct AlignedBuf {
    base: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// The owner of the memory.
enum Owner {
    /// The buffer itself.
    Own(Layout),
    /// A [`BufferPool`](super::BufferPool).
    Pool(Arc<Region>, u32),
    /// The caller, by a [`BufferMemory`](super::BufferMemory).
    Theirs(Arc<MemoryParts>),
}

// SAFETY: it owns its memory as a Vec does.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Creates a buffer with room for `capacity` bytes (at least 1) at a multiple of `align`; it
    /// holds none yet.
    ///
    /// # Panics
    /// If `align` is no power of two, or the capacity is more than half of the address space. If
    /// the system has no memory of that size and alignment, the process aborts, as for a `Vec`.
    pub fn new(capacity: usize, align: usize) -> Self {
        let layout = Layout::from_size_align(capacity.max(1), align)
            .expect("an alignment is a power of two, and a capacity fits the address space");
        // SAFETY: the layout isn't empty.
        let base = unsafe { alloc(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, len: 0, owner: Owner::Own(layout) }
    }

    /// Makes the buffer of a pool whose tag the caller has.
    pub(super) fn of(region: Arc<Region>, tag: u32) -> Self {
        Self { base: region.place(tag), len: 0, owner: Owner::Pool(region, tag) }
    }

    /// Makes a buffer in memory of the caller.
    pub(super) fn within(base: NonNull<u8>, parts: Arc<MemoryParts>) -> Self {
        Self { base, len: 0, owner: Owner::Theirs(parts) }
    }

    /// Creates a buffer full of zeroes, like [`AlignedBuf::new`].
    ///
    /// # Panics
    /// See [`AlignedBuf::new`].
    pub fn zeroed(len: usize, align: usize) -> Self {
        let mut this = Self::new(len, align);
        this.spare_capacity_mut()[..len].fill(MaybeUninit::new(0));
        this.len = len;
        this
    }

    /// Returns how many bytes it has room for.
    pub fn capacity(&self) -> usize {
        match &self.owner {
            Owner::Own(layout) => layout.size(),
            Owner::Pool(region, _) => region.capacity(),
            Owner::Theirs(parts) => parts.capacity,
        }
    }

    fn align(&self) -> usize {
        match &self.owner {
            Owner::Own(layout) => layout.align(),
            Owner::Pool(region, _) => region.align(),
            Owner::Theirs(parts) => parts.align,
        }
    }

    /// Forgets its bytes.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the room behind its bytes.
    pub fn spare_capacity_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: `len` is at most the capacity, so the range is inside the allocation, which is
        // ours; uninitialized bytes are fine as MaybeUninit.
        unsafe {
            let room = self.base.as_ptr().add(self.len).cast();
            std::slice::from_raw_parts_mut(room, self.capacity() - self.len)
        }
    }

    /// Sets how many bytes it holds.
    ///
    /// # Safety
    /// The first `len` bytes are initialized, and `len` is at most the capacity.
    pub unsafe fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.capacity());
        self.len = len;
    }

    /// Appends a copy of `bytes`.
    ///
    /// # Panics
    /// If they don't fit.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let room = &mut self.spare_capacity_mut()[..bytes.len()];
        write_copy(room, bytes);
        self.len += bytes.len();
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are initialized and ours.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: allocated with this layout, and freed once.
            Owner::Own(layout) => unsafe { dealloc(self.base.as_ptr(), *layout) },
            Owner::Pool(region, tag) => region.put(*tag),
            Owner::Theirs(_) => {}
        }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .field("align", &self.align())
            .finish()
    }
}

/// Copies `bytes` to memory of their length.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub(crate) fn write_copy(room: &mut [MaybeUninit<u8>], bytes: &[u8]) {
    // SAFETY: an initialized byte is a `MaybeUninit<u8>`, which has the same layout.
    room.copy_from_slice(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_that_a_queue_allocates_for_a_read_is_aligned() {
        for align in [1, 8, 512, 4096] {
            let mut buffer = Buffer::from(BytesMut::new());
            let room = buffer.room(1000, align).unwrap();
            assert_eq!((room.len(), room.as_ptr().addr() % align), (1000, 0));
            room.fill(MaybeUninit::new(7));
            // SAFETY: just written.
            unsafe { buffer.grow(1000) };
            assert_eq!(buffer.as_slice(), [7; 1000]);
        }
    }

    #[test]
    fn the_content_of_a_buffer_stays_in_front_of_its_room() {
        for mut buffer in [Buffer::from(BytesMut::from(&b"head"[..])), {
            let mut aligned = AlignedBuf::new(512, 64);
            aligned.extend_from_slice(b"head");
            aligned.into()
        }] {
            buffer.room(100, 512).unwrap().fill(MaybeUninit::new(7));
            // SAFETY: just written.
            unsafe { buffer.grow(100) };
            assert_eq!((&buffer.as_slice()[..4], buffer.len()), (&b"head"[..], 104));
        }
        assert!(Buffer::from(AlignedBuf::new(99, 8)).room(100, 1).is_none());
        assert!(Buffer::from(Bytes::new()).room(1, 1).is_none());
    }
}
