//! The buffers of a ring's reads and writes. Small ones are used again: their memory is there and
//! initialized.

use corewise_blockmq::{AlignedBuf, Buffer, Payload};

/// Largest buffer that is kept, in bytes.
const MOST_BYTES: usize = 16 << 10;
/// Most buffers that are kept.
const MOST_KEPT: usize = 64;

/// Buffers of one ring that wait for their next use. Each is full.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    kept: Vec<AlignedBuf>,
}

impl Buffers {
    fn take(&mut self, len: usize, align: usize) -> Option<AlignedBuf> {
        let fits =
            |buffer: &AlignedBuf| buffer.capacity() == len && buffer.as_ptr().addr() % align == 0;
        let at = self.kept.iter().rposition(fits)?;
        Some(self.kept.swap_remove(at))
    }

    /// Returns a buffer of `len` bytes, which hold anything of this ring.
    pub(super) fn full(&mut self, len: usize, align: usize) -> AlignedBuf {
        self.take(len, align).unwrap_or_else(|| AlignedBuf::zeroed(len, align))
    }

    /// Returns an empty buffer with room for `len` bytes.
    pub(super) fn empty(&mut self, len: usize, align: usize) -> AlignedBuf {
        let Some(mut buffer) = self.take(len, align) else { return AlignedBuf::new(len, align) };
        buffer.clear();
        buffer
    }

    /// Keeps the buffer of a request that has ended, if it is small and full.
    pub(super) fn keep(&mut self, payload: Payload) {
        let Payload::One(Buffer::Aligned(buffer)) = payload else { return };
        let is_small = buffer.capacity() <= MOST_BYTES && self.kept.len() < MOST_KEPT;
        if is_small && buffer.len() == buffer.capacity() {
            self.kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_for_the_same_length_alone() {
        let mut buffers = Buffers::default();
        let first = buffers.full(4096, 512);
        let at = first.as_ptr();
        buffers.keep(Payload::One(first.into()));
        assert_ne!(buffers.empty(8192, 512).as_ptr(), at);
        let again = buffers.empty(4096, 512);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        // It isn't full.
        buffers.keep(Payload::One(again.into()));
        assert!(buffers.kept.is_empty());
    }

    #[test]
    fn few_and_small_buffers_are_kept() {
        let mut buffers = Buffers::default();
        buffers.keep(Payload::One(AlignedBuf::zeroed(MOST_BYTES + 1, 1).into()));
        assert!(buffers.kept.is_empty());
        (0..2 * MOST_KEPT)
            .for_each(|_| buffers.keep(Payload::One(AlignedBuf::zeroed(512, 1).into())));
        assert_eq!(buffers.kept.len(), MOST_KEPT);
    }
}
