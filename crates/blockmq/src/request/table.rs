//! The list of the pieces of memory of a request.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

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

/// The next of `left` bytes that lie in `segs` behind the first `skip`.
#[inline]
pub(crate) fn next_piece(segs: &mut &[Seg], skip: &mut u64, left: &mut u64) -> Option<Seg> {
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
