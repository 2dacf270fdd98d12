//! Segments: the pieces of memory in which the bytes of a request lie.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// A piece of memory, without its owner: an entry of the kernel's `bio_vec`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seg {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: a number and an address. Who follows the address argues for itself.
unsafe impl Send for Seg {}
// SAFETY: as above.
unsafe impl Sync for Seg {}

impl Seg {
    /// A piece whose memory isn't there yet.
    pub(crate) fn dangling(len: usize) -> Self {
        Self { base: NonNull::dangling(), len }
    }

    /// Bytes to read from; the pointer must not be written through.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { base: NonNull::from(bytes).cast(), len: bytes.len() }
    }

    /// Bytes to write to.
    pub(crate) fn of_room(room: &mut [MaybeUninit<u8>]) -> Self {
        Self { len: room.len(), base: NonNull::from(room).cast() }
    }
}

/// Where a request's pieces are listed.
#[derive(Debug)]
pub(crate) enum Table {
    /// Nowhere: it has no bytes.
    None,
    One(Seg),
    Many(Box<[Seg]>),
    /// In the request of which this one is a part. The list stays where it is, and its memory alive, as
    /// long as the part isn't finished.
    Theirs(NonNull<[Seg]>),
}

// SAFETY: the list behind `Theirs` is immutable while a part refers to it, and what is in it is Send and
// Sync.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    pub(crate) fn segs(&self) -> &[Seg] {
        match self {
            Table::None => &[],
            Table::One(seg) => std::slice::from_ref(seg),
            Table::Many(segs) => segs,
            // SAFETY: the part that has this table isn't finished, else the table would be `None`; so
            // the whole, which owns the list and doesn't change it meanwhile, is alive.
            Table::Theirs(segs) => unsafe { segs.as_ref() },
        }
    }

    pub(crate) fn segs_mut(&mut self) -> &mut [Seg] {
        match self {
            Table::None | Table::Theirs(_) => &mut [],
            Table::One(seg) => std::slice::from_mut(seg),
            Table::Many(segs) => segs,
        }
    }
}

/// One piece of memory of a request: raw, for a driver that hands it on to the kernel or to a device.
///
/// The memory stays where it is until the request completes. Who writes through the address of a write's
/// segment, or reads what a read hasn't filled yet, breaks Rust's rules.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    seg: Seg,
    rq: PhantomData<&'a ()>,
}

impl Segment<'_> {
    /// Address of its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.seg.base.as_ptr()
    }

    /// Length in bytes, not 0.
    #[allow(clippy::len_without_is_empty)] // none is empty
    pub fn len(&self) -> usize {
        self.seg.len
    }
}

/// The segments of a request, in order: see [`Request::segments`](crate::Request::segments).
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    segs: &'a [Seg],
    /// Bytes to leave out in front.
    skip: u64,
    /// Bytes to give.
    left: u64,
}

impl<'a> Segments<'a> {
    /// `len` bytes behind the first `skip` of `segs`.
    pub(crate) fn new(segs: &'a [Seg], skip: u64, len: u64) -> Self {
        Self { segs, skip, left: len }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        while self.left != 0 {
            let (seg, rest) = self.segs.split_first()?;
            self.segs = rest;
            let skip = self.skip.min(seg.len as u64);
            self.skip -= skip;
            let len = (seg.len as u64 - skip).min(self.left);
            if len != 0 {
                self.left -= len;
                // SAFETY: `skip` is at most the length of the piece, which is one allocation.
                let base = unsafe { seg.base.add(skip as usize) };
                return Some(Segment { seg: Seg { base, len: len as usize }, rq: PhantomData });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_of_a_list_gives_the_bytes_in_their_order() {
        let bytes: Vec<u8> = (0..20).collect();
        let segs: Vec<Seg> =
            [0..3, 3..3, 3..4, 4..15, 15..20].into_iter().map(|r| Seg::of(&bytes[r])).collect();
        for skip in 0..=20 {
            for len in 0..=22 {
                let got: Vec<u8> = Segments::new(&segs, skip as u64, len as u64)
                    .flat_map(|s| {
                        // SAFETY: the pieces lie in `bytes`, which lives.
                        unsafe { std::slice::from_raw_parts(s.as_ptr(), s.len()) }.to_vec()
                    })
                    .collect();
                assert_eq!(got, bytes[skip..20.min(skip + len)]);
            }
        }
    }
}
