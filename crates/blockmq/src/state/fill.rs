//! Filling a read: the bytes that a driver puts into the memory of a request.
//!
//! Bytes are filled in order from the first one on. One number counts them; the bytes behind are
//! taken for uninitialized.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;

use crate::request::{Extent, Extents, Op, Payload, write_copy};
use crate::state::driver::Started;
use crate::state::request::Request;
use crate::state::whole::HeldRequest;

impl Request {
    /// Returns the memory of a read that is still to be filled, piece by piece in order; nothing
    /// for other operations. [`Request::advance`] records what has been filled. If no queue has
    /// seen the request, its buffers get their room now.
    #[inline]
    pub fn rooms(&mut self) -> impl Iterator<Item = &mut [MaybeUninit<u8>]> {
        // A buffer without room stays so, and the request fails by its unfilled bytes.
        let has = self.op == Op::Read && self.prepare(1).is_ok();
        let segments = has.then(|| self.segments());
        segments.into_iter().flatten().map(|segment| {
            // SAFETY: a read's segments lie in the room of its own buffers, which no other code
            // touches before it is finished, or in a window of its whole's that no other part has.
            // They don't overlap, and `self` is borrowed exclusively.
            unsafe { std::slice::from_raw_parts_mut(segment.as_ptr().cast(), segment.len()) }
        })
    }

    /// Copies `bytes` to the next unfilled bytes of a read, and returns how many of them fitted.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        for room in self.rooms() {
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            write_copy(&mut room[..now.len()], now);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        let n = bytes.len() - rest.len();
        // SAFETY: just written.
        unsafe { self.advance(n as u64) };
        n
    }

    /// Fills the next `n` bytes of a read with zeroes, and returns how many fitted.
    #[inline]
    pub fn put_zeroes(&mut self, n: u64) -> u64 {
        let mut left = n;
        for room in self.rooms() {
            let here = left.min(room.len() as u64);
            room[..here as usize].fill(MaybeUninit::new(0));
            left -= here;
        }
        // SAFETY: just written.
        unsafe { self.advance(n - left) };
        n - left
    }

    /// Records that the next `n` bytes of a read have been filled, by the thread that was given its
    /// [segments](Request::segments).
    ///
    /// # Safety
    /// They are initialized, and `n` is at most what is missing: 0 for other operations.
    #[inline]
    pub unsafe fn advance(&mut self, n: u64) {
        debug_assert!(n == 0 || self.op == Op::Read && n <= self.len - self.filled);
        self.filled += n;
    }

    /// Returns the filled bytes of a read, piece by piece in order, to be changed in place; nothing
    /// for other operations. A driver over another device can so decrypt them in the function of
    /// [`Whole::with`](crate::Whole::with).
    #[inline]
    pub fn filled_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut left = self.filled;
        self.segments_behind(0).map_while(move |segment| {
            let here = left.min(segment.len() as u64);
            left -= here;
            // SAFETY: the first `filled` bytes of a read are initialized. Its segments lie in the
            // room of its own buffers, which no other code touches before it is finished, or in a
            // window of its whole's that no other part has. They don't overlap, and `self` is
            // borrowed exclusively.
            let bytes =
                || unsafe { std::slice::from_raw_parts_mut(segment.as_ptr(), here as usize) };
            (here != 0).then(bytes)
        })
    }

    /// Forgets the content that was put into a read, or into a request for extents, to do it once
    /// more.
    #[inline]
    pub fn start_over(&mut self) {
        self.filled = 0;
        if let Payload::Extents(extents) = &mut self.payload {
            extents.clear();
        }
    }

    /// Returns the number of bytes that a read has filled so far, from its first one on.
    #[inline]
    pub fn filled(&self) -> u64 {
        self.filled
    }
}

impl Request {
    /// Asks for the allocation of `len` bytes at byte `offset`: at most `most` extents (at least
    /// one), which may end before the range does.
    pub fn extents_of(offset: u64, len: u64, most: u32) -> Self {
        let mut rq = Self::new(Op::Extents, offset, len);
        rq.payload = Payload::Extents(Extents::new(most));
        rq
    }

    /// Returns the extents that a request for extents has found so far; `None` for other
    /// operations.
    pub fn extents(&self) -> Option<&Extents> {
        match &self.payload {
            Payload::Extents(extents) => Some(extents),
            _ => None,
        }
    }

    /// Adds the extent behind those that were found so far; a part behind the range is cut off.
    /// Returns true if more extents are of use; false for other operations. A request for extents
    /// that finds none ends with one of data.
    pub fn put_extent(&mut self, extent: Extent) -> bool {
        let len = self.len;
        match &mut self.payload {
            Payload::Extents(extents) => extents.push(extent, len),
            _ => false,
        }
    }
}

/// Gives the handle of a request the methods that fill a read. The handle must not give out the
/// request itself: code that replaces that by another one would lose the requests that were merged
/// into it.
macro_rules! fills {
    ($handle:ty) => {
        impl $handle {
            /// Returns the unfilled memory: see [`Request::rooms`].
            #[inline]
            pub fn rooms(&mut self) -> impl Iterator<Item = &mut [MaybeUninit<u8>]> {
                self.rq_mut().rooms()
            }

            /// Copies bytes into a read: see [`Request::put`].
            #[inline]
            pub fn put(&mut self, bytes: &[u8]) -> usize {
                self.rq_mut().put(bytes)
            }

            /// Fills bytes with zeroes: see [`Request::put_zeroes`].
            #[inline]
            pub fn put_zeroes(&mut self, n: u64) -> u64 {
                self.rq_mut().put_zeroes(n)
            }

            /// Adds an extent: see [`Request::put_extent`].
            #[inline]
            pub fn put_extent(&mut self, extent: Extent) -> bool {
                self.rq_mut().put_extent(extent)
            }

            /// Forgets what was filled: see [`Request::start_over`].
            #[inline]
            pub fn start_over(&mut self) {
                self.rq_mut().start_over();
            }

            /// Returns the filled bytes: see [`Request::filled_mut`].
            #[inline]
            pub fn filled_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
                self.rq_mut().filled_mut()
            }

            /// Records filled bytes: see [`Request::advance`].
            ///
            /// # Safety
            /// The obligations are those of [`Request::advance`].
            #[inline]
            pub unsafe fn advance(&mut self, n: u64) {
                // SAFETY: as the caller says.
                unsafe { self.rq_mut().advance(n) };
            }
        }
    };
}

fills!(Started);
fills!(HeldRequest);
fills!(RequestMut<'_>);

/// A request that a driver fills, behind any handle. It can't be exchanged for another one.
pub struct RequestMut<'a>(&'a mut Request);

impl RequestMut<'_> {
    #[inline]
    fn rq_mut(&mut self) -> &mut Request {
        self.0
    }
}

impl<'a> From<&'a mut Request> for RequestMut<'a> {
    #[inline]
    fn from(rq: &'a mut Request) -> Self {
        Self(rq)
    }
}

impl<'a> From<&'a mut Started> for RequestMut<'a> {
    #[inline]
    fn from(started: &'a mut Started) -> Self {
        started.rq_mut().into()
    }
}

impl Deref for RequestMut<'_> {
    type Target = Request;

    #[inline]
    fn deref(&self) -> &Request {
        self.0
    }
}

impl fmt::Debug for RequestMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
