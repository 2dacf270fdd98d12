//! Segments: the pieces of memory in which the bytes of a request lie.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use corewise_sync::list;

use super::Request;
use crate::state::pending::Pending;

/// A piece of memory, without its owner: an entry of the kernel's `bio_vec`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seg {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: a number and an address. Code that follows the address argues for itself.
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
    #[inline]
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
/// The memory stays where it is until the request completes. Code that writes through the address of a write's
/// segment, or reads what a read hasn't filled yet, breaks Rust's rules.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    seg: Seg,
    rq: PhantomData<&'a ()>,
}

impl Segment<'_> {
    /// Address of its first byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.seg.base.as_ptr()
    }

    /// Length in bytes, not 0.
    #[allow(clippy::len_without_is_empty)] // none is empty
    #[inline]
    pub fn len(&self) -> usize {
        self.seg.len
    }
}

impl From<Segment<'_>> for Seg {
    fn from(segment: Segment<'_>) -> Self {
        segment.seg
    }
}

/// The segments of a request, in order: see [`Request::segments`].
#[derive(Debug)]
pub struct Segments<'a> {
    segs: &'a [Seg],
    /// Bytes of `segs` to leave out in front.
    skip: u64,
    /// Bytes to give of `segs`.
    left: u64,
    /// Requests that were merged into it.
    more: list::Iter<'a, Box<Pending>>,
    /// Bytes to leave out of those.
    filled: u64,
}

impl<'a> Segments<'a> {
    /// What lies behind the first `filled` bytes of a request.
    #[inline]
    pub(super) fn new(rq: &'a Request, filled: u64) -> Self {
        let mut this = Self { segs: &[], skip: 0, left: 0, more: rq.tail.iter(), filled };
        this.enter(rq);
        this
    }

    #[inline]
    fn enter(&mut self, rq: &'a Request) {
        let (segs, skip, len) = rq.own_segs();
        let gone = self.filled.min(len);
        self.filled -= gone;
        (self.segs, self.skip, self.left) = (segs, skip + gone, len - gone);
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    #[inline]
    fn next(&mut self) -> Option<Segment<'a>> {
        loop {
            if let Some(segment) = next_piece(&mut self.segs, &mut self.skip, &mut self.left) {
                return Some(Segment { seg: segment, rq: PhantomData });
            }
            let next = self.more.next()?;
            self.enter(next.rq());
        }
    }
}

/// The next of `left` bytes that lie in `segs` behind the first `skip`.
#[inline]
fn next_piece(segs: &mut &[Seg], skip: &mut u64, left: &mut u64) -> Option<Seg> {
    while *left != 0 {
        let (seg, rest) = segs.split_first()?;
        *segs = rest;
        let gone = (*skip).min(seg.len as u64);
        *skip -= gone;
        let len = (seg.len as u64 - gone).min(*left);
        if len != 0 {
            *left -= len;
            // SAFETY: `gone` is at most the length of the piece, which is one allocation.
            let base = unsafe { seg.base.add(gone as usize) };
            return Some(Seg { base, len: len as usize });
        }
    }
    None
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
                let (mut rest, mut gone, mut left) = (&segs[..], skip as u64, len as u64);
                let mut got: Vec<u8> = Vec::new();
                while let Some(seg) = next_piece(&mut rest, &mut gone, &mut left) {
                    // SAFETY: the pieces lie in `bytes`, which lives.
                    got.extend(unsafe { std::slice::from_raw_parts(seg.base.as_ptr(), seg.len) });
                }
                assert_eq!(got, bytes[skip..20.min(skip + len)]);
            }
        }
    }
}
