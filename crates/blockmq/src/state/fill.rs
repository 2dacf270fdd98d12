//! Filling a read: what a driver puts into the memory of a request.
//!
//! Bytes are filled from the first one on: how many is one number, and everything behind them is
//! taken for uninitialized.

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Deref;

use crate::request::{Extent, Extents, Op, Payload, write_copy};
use crate::state::driver::Started;
use crate::state::request::Request;
use crate::state::whole::HeldRequest;

impl Request {
    /// The memory of a read that is still to be filled, piece by piece in order; nothing for other
    /// operations. Say with [`Request::advance`] what has been filled. Where no queue has seen the
    /// request, its buffers get their room now.
    #[inline]
    pub fn rooms(&mut self) -> impl Iterator<Item = &mut [MaybeUninit<u8>]> {
        // A buffer without room stays without, and the request fails by what isn't filled.
        let has = self.op == Op::Read && self.prepare(1).is_ok();
        let segments = has.then(|| self.segments());
        segments.into_iter().flatten().map(|segment| {
            // SAFETY: a read's segments lie in the room of its own buffers, which nobody touches
            // before it is finished, or in a window of its whole's that no other part has; they
            // don't overlap, and `self` is borrowed exclusively.
            unsafe { std::slice::from_raw_parts_mut(segment.as_ptr().cast(), segment.len()) }
        })
    }

    /// Copies `bytes` to where the next bytes of a read belong, and says how many of them fitted.
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

    /// Fills the next `n` bytes of a read with zeroes, and says how many there were.
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

    /// Says that the next `n` bytes of a read have been filled, by the thread that was given its
    /// [segments](Request::segments).
    ///
    /// # Safety
    /// They are initialized, and `n` is at most what is missing: 0 for other operations.
    #[inline]
    pub unsafe fn advance(&mut self, n: u64) {
        debug_assert!(n == 0 || self.op == Op::Read && n <= self.len - self.filled);
        self.filled += n;
    }

    /// The bytes that a read has filled so far, piece by piece in order, to be changed where they
    /// are: by a driver that stands on another device and decrypts what comes from there, say, in
    /// the function of [`Whole::with`]( crate::Whole::with). Nothing for other operations.
    #[inline]
    pub fn filled_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut left = self.filled;
        self.segments_behind(0).map_while(move |segment| {
            let here = left.min(segment.len() as u64);
            left -= here;
            // SAFETY: the first `filled` bytes of a read are initialized. Its segments lie in the
            // room of its own buffers, which nobody touches before it is finished, or in a window
            // of its whole's that no other part has; they don't overlap, and `self` is borrowed
            // exclusively.
            let bytes =
                || unsafe { std::slice::from_raw_parts_mut(segment.as_ptr(), here as usize) };
            (here != 0).then(bytes)
        })
    }

    /// Forgets what a read, or a request for extents, has been given so far, to be done once more.
    #[inline]
    pub fn start_over(&mut self) {
        self.filled = 0;
        if let Payload::Extents(extents) = &mut self.payload {
            extents.clear();
        }
    }

    /// Bytes that a read has filled so far, from its first one on.
    #[inline]
    pub fn filled(&self) -> u64 {
        self.filled
    }
}

impl Request {
    /// What is known of `len` bytes at byte `offset`: at most `most` extents (at least one), which
    /// may end before the range does.
    pub fn extents_of(offset: u64, len: u64, most: u32) -> Self {
        let mut rq = Self::new(Op::Extents, offset, len);
        rq.payload = Payload::Extents(Extents::new(most));
        rq
    }

    /// Of a request for extents: those that were found so far; `None` for other operations.
    pub fn extents(&self) -> Option<&Extents> {
        match &self.payload {
            Payload::Extents(extents) => Some(extents),
            _ => None,
        }
    }

    /// Says what comes behind the extents that were found so far: what lies behind the range is cut
    /// off. Whether more is of use; false for other operations. A request for extents of which none
    /// was found ends with one of data.
    pub fn put_extent(&mut self, extent: Extent) -> bool {
        let len = self.len;
        match &mut self.payload {
            Payload::Extents(extents) => extents.push(extent, len),
            _ => false,
        }
    }
}

/// Gives a handle of somebody else's request what fills a read. It must not give the request itself
/// to be changed: a stranger that could put another one in its place would take along those that
/// were merged into it.
macro_rules! fills {
    ($handle:ty) => {
        impl $handle {
            /// As [`Request::rooms`].
            #[inline]
            pub fn rooms(&mut self) -> impl Iterator<Item = &mut [MaybeUninit<u8>]> {
                self.rq_mut().rooms()
            }

            /// As [`Request::put`].
            #[inline]
            pub fn put(&mut self, bytes: &[u8]) -> usize {
                self.rq_mut().put(bytes)
            }

            /// As [`Request::put_zeroes`].
            #[inline]
            pub fn put_zeroes(&mut self, n: u64) -> u64 {
                self.rq_mut().put_zeroes(n)
            }

            /// As [`Request::put_extent`].
            #[inline]
            pub fn put_extent(&mut self, extent: Extent) -> bool {
                self.rq_mut().put_extent(extent)
            }

            /// As [`Request::start_over`].
            #[inline]
            pub fn start_over(&mut self) {
                self.rq_mut().start_over();
            }

            /// As [`Request::filled_mut`].
            #[inline]
            pub fn filled_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
                self.rq_mut().filled_mut()
            }

            /// As [`Request::advance`].
            ///
            /// # Safety
            /// As there.
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

/// A request that a driver fills, whichever handle it lies in. It isn't exchanged for another one.
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
