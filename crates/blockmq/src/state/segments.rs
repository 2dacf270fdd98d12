//! Segments: the pieces of memory in which the bytes of a request lie.

use std::marker::PhantomData;

use corewise_sync::list;

use crate::request::Op;
use crate::request::table::{Seg, next_piece};
use crate::state::pending::Pending;
use crate::state::request::Request;

/// One piece of memory of a request: raw, for a driver that passes it to the kernel or to a device.
///
/// The memory stays where it is until the request completes. Code that writes through the address
/// of a write's segment, or reads bytes that a read hasn't filled yet, breaks Rust's rules.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    seg: Seg,
    rq: PhantomData<&'a ()>,
}

impl Segment<'_> {
    /// Returns the address of its first byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.seg.base.as_ptr()
    }

    /// Returns the length in bytes, not 0.
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

impl Request {
    /// Returns the pieces of memory in which the request's bytes lie, in order: of a write, all of
    /// them; of a read, those that are still to be filled. There may be any number of pieces, of
    /// any length.
    ///
    /// A read that no queue has taken in may have no memory yet: see [`Request::rooms`].
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        Segments::new(self, self.filled)
    }

    /// Returns [`Request::segments`] behind the first `at` bytes of all.
    #[inline]
    pub(crate) fn segments_behind(&self, at: u64) -> Segments<'_> {
        Segments::new(self, at)
    }

    /// Returns the bytes of a write, piece by piece in order; nothing for other operations.
    #[inline]
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let segments = (self.op == Op::Write).then(|| self.segments());
        segments.into_iter().flatten().map(|segment| {
            // SAFETY: a write's segments are initialized bytes of its own buffers, or of its
            // whole's. No code changes them before the request is finished, and finishing takes it
            // mutably.
            unsafe { std::slice::from_raw_parts(segment.as_ptr(), segment.len()) }
        })
    }

    /// Copies the bytes of a write to `to`, and returns how many fitted.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut at = 0;
        for chunk in self.chunks() {
            let n = chunk.len().min(to.len() - at);
            to[at..at + n].copy_from_slice(&chunk[..n]);
            at += n;
        }
        at
    }
}

/// The segments of a request, in order: see [`Request::segments`].
#[derive(Debug)]
pub struct Segments<'a> {
    segs: &'a [Seg],
    /// Number of bytes of `segs` to skip in front.
    skip: u64,
    /// Number of bytes of `segs` to give.
    left: u64,
    /// Requests that were merged into it.
    more: list::Iter<'a, Box<Pending>>,
    /// Number of their bytes to leave out.
    filled: u64,
}

impl<'a> Segments<'a> {
    /// Returns the segments behind the first `filled` bytes of a request.
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
