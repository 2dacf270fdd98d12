//! Policy: the part of a request that a driver gets at once, and the requests that become one.
//! Pure: plain numbers.
//!
//! The kernel's counterparts are `bio_split_rw_at`, `bio_split_discard` and `blk_rq_merge_ok`.

use crate::request::Op;
use crate::request::geometry::Geometry;

/// The driver's limits, from its [`Geometry`] and made sane: no limit is below one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    block: u64,
    physical: u64,
    transfer: u64,
    segments: u32,
    segment: u64,
    /// Distance of boundaries; `u64::MAX` if there are none.
    chunk: u64,
    discard: u64,
    zeroes: u64,
    /// Length up to which a read or write of one piece is below all limits, wherever it begins.
    small: u64,
}

impl Limits {
    pub(crate) fn new(g: &Geometry) -> Self {
        let block = u64::from(g.block_size);
        let whole = |bytes: u64| (bytes / block * block).max(block);
        let chunk = if g.chunk == 0 { u64::MAX } else { whole(u64::from(g.chunk)) };
        let transfer = whole(u64::from(g.max_transfer));
        let segment = u64::from(g.max_segment_size.max(1));
        Self {
            block,
            physical: u64::from(g.physical_block).max(block),
            transfer,
            segments: g.max_segments.max(1),
            segment,
            chunk,
            discard: whole(g.max_discard),
            zeroes: whole(g.max_write_zeroes),
            small: if g.chunk == 0 { transfer.min(segment) } else { 0 },
        }
    }

    /// Returns true if a request is surely taken as it is. For nearly all requests no other check
    /// is made.
    #[inline]
    pub(crate) fn takes_at_once(&self, op: Op, len: u64, pieces: usize) -> bool {
        match op {
            Op::Read | Op::Write => len <= self.small && pieces <= 1,
            Op::Flush | Op::Extents | Op::Prefetch => true,
            Op::Discard => len <= self.discard,
            Op::WriteZeroes => len <= self.zeroes,
        }
    }

    /// Returns how many bytes of a request the driver gets first: all of `len`, or less in whole
    /// blocks, if possible up to a physical block's end. `pieces` are the lengths of its pieces of
    /// memory.
    ///
    /// `None` if not even one block can be taken: it lies in too many pieces.
    pub(crate) fn first(
        &self,
        op: Op,
        offset: u64,
        len: u64,
        pieces: impl Iterator<Item = u64>,
    ) -> Option<u64> {
        match op {
            Op::Flush | Op::Extents | Op::Prefetch => Some(len),
            Op::Discard => Some(self.cut(offset, len, self.discard)),
            Op::WriteZeroes => Some(self.cut(offset, len, self.zeroes)),
            Op::Read | Op::Write => {
                let most = len.min(self.transfer).min(self.chunk - offset % self.chunk);
                let fits = self.fits(most, pieces);
                let taken = self.cut(offset, len, fits);
                (taken != 0 || len == 0).then_some(taken)
            }
        }
    }

    /// Returns how many of the first `most` bytes lie in as many pieces as the driver takes.
    fn fits(&self, most: u64, pieces: impl Iterator<Item = u64>) -> u64 {
        let mut left = u64::from(self.segments);
        let mut bytes = 0;
        for piece in pieces {
            if bytes >= most || left == 0 {
                break;
            }
            let n = piece.div_ceil(self.segment).min(left);
            bytes += piece.min(n.saturating_mul(self.segment));
            left -= n;
        }
        bytes.min(most)
    }

    /// Returns at most `most` of `len` bytes, cut at a block's end.
    fn cut(&self, offset: u64, len: u64, most: u64) -> u64 {
        if len <= most {
            return len;
        }
        let end = offset.saturating_add(most);
        let aligned = end / self.physical * self.physical;
        if aligned > offset { aligned - offset } else { most / self.block * self.block }
    }

    /// Returns the side of `a` on which `b`, which comes later, can be merged, if at all.
    pub(crate) fn may_merge(&self, a: &Shape, b: &Shape) -> Option<Side> {
        if a.op != b.op || a.no_merge || b.no_merge || a.len == 0 || b.len == 0 {
            return None;
        }
        let side = if a.offset.checked_add(a.len) == Some(b.offset) {
            Side::Back
        } else if b.offset.checked_add(b.len) == Some(a.offset) {
            Side::Front
        } else {
            return None;
        };
        let (offset, len) = (a.offset.min(b.offset), a.len.checked_add(b.len)?);
        let fits = match a.op {
            Op::Read | Op::Write => {
                len <= self.transfer
                    && len <= self.chunk - offset % self.chunk
                    && a.pieces.saturating_add(b.pieces) <= self.segments
            }
            Op::Discard => len <= self.discard,
            Op::Flush | Op::WriteZeroes | Op::Extents | Op::Prefetch => false,
        };
        fits.then_some(side)
    }

    /// Returns the number of pieces of memory as which a piece of `len` bytes counts.
    pub(crate) fn pieces_of(&self, len: u64) -> u32 {
        u32::try_from(len.div_ceil(self.segment)).unwrap_or(u32::MAX)
    }
}

/// Returns the properties of a queue over such a driver: it splits requests to the driver's limits,
/// and makes changes durable for a driver that can't. One bound on a request remains, as large as
/// any driver's.
pub(crate) fn outer(g: &Geometry) -> Geometry {
    let free = Geometry::new(g.size);
    Geometry {
        max_transfer: g.max_transfer.max(free.max_transfer) / g.block_size * g.block_size,
        max_segments: free.max_segments,
        max_segment_size: free.max_segment_size,
        chunk: 0,
        max_discard: free.max_discard,
        max_write_zeroes: free.max_write_zeroes,
        can_fua: g.can_fua || g.can_flush,
        ..*g
    }
}

/// The properties of a request that decide merges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Number of pieces of memory as which it counts.
    pub(crate) pieces: u32,
    /// True if it stays alone: it is durable on its own, or was split from a larger one, or is
    /// tried again.
    pub(crate) no_merge: bool,
}

/// The side of a request on which a later one lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The side in front: the later one ends where the earlier one begins.
    Front,
    /// The side behind: the later one begins where the earlier one ends.
    Back,
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: Geometry = Geometry {
        max_transfer: 8192,
        max_segments: 4,
        max_segment_size: 3000,
        ..Geometry::new(1 << 40)
    };

    fn shape(op: Op, block: u64, blocks: u64) -> Shape {
        Shape { op, offset: block * 512, len: blocks * 512, pieces: 1, no_merge: false }
    }

    #[test]
    fn the_cuts_of_any_request_cover_it_once_and_keep_every_limit() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut rnd = |below: u64| rng.u64(..below);
        for round in 0..3000 {
            let block = 512 << rnd(3);
            let g = Geometry {
                block_size: block,
                physical_block: block << rnd(3),
                max_transfer: 1 + rnd(100_000) as u32,
                max_segments: 1 + rnd(20) as u32,
                max_segment_size: 1 + rnd(20_000) as u32,
                chunk: if rnd(2) == 0 { 0 } else { block * (1 + rnd(30) as u32) },
                max_discard: 1 + rnd(1 << 20),
                max_write_zeroes: 1 + rnd(1 << 20),
                ..Geometry::new(1 << 40)
            };
            let limits = Limits::new(&g);
            let block = u64::from(block);
            let op = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes][rnd(4) as usize];
            let offset = rnd(1000) * block;
            let len = (1 + rnd(300)) * block;
            let mut pieces = Vec::new();
            let mut left = len;
            while left != 0 {
                let most = [8, 700, 40_000][rnd(3) as usize];
                let n = (1 + rnd(most)).min(left);
                pieces.push(n);
                left -= n;
            }
            let mut at = 0;
            while at < len {
                // The pieces behind `at`.
                let mut skip = at;
                let rest = pieces.iter().filter_map(move |&p| {
                    let gone = skip.min(p);
                    skip -= gone;
                    (p != gone).then_some(p - gone)
                });
                let Some(n) = limits.first(op, offset + at, len - at, rest.clone()) else {
                    assert!(op.has_bytes());
                    assert!(limits.fits(block, rest) < block, "one block could have been taken");
                    break;
                };
                assert!(n != 0 && n % block == 0, "round {round}: {n} of {len} at {at}");
                assert!(n <= len - at);
                match op {
                    Op::Discard => assert!(n <= g.max_discard.max(block)),
                    Op::WriteZeroes => assert!(n <= g.max_write_zeroes.max(block)),
                    _ => {
                        assert!(n <= u64::from(g.max_transfer).max(block));
                        assert_eq!(limits.fits(n, rest), n, "no more pieces than the driver takes");
                        let of = |byte: u64| byte.checked_div(u64::from(g.chunk));
                        let (first, last) = (offset + at, offset + at + n - 1);
                        assert_eq!(of(first), of(last), "no boundary is crossed");
                    }
                }
                if limits.takes_at_once(op, len - at, pieces.len()) {
                    assert_eq!(n, len - at, "what is taken at once is not cut");
                }
                at += n;
            }
        }
    }

    #[test]
    fn cuts_are_at_physical_blocks_where_they_can_be() {
        let g = Geometry { physical_block: 4096, max_transfer: 10_000, ..Geometry::new(1 << 30) };
        let limits = Limits::new(&g);
        let first = |offset, len| limits.first(Op::Write, offset, len, std::iter::once(len));
        assert_eq!(first(0, 1 << 20), Some(8192));
        assert_eq!(first(512, 1 << 20), Some(8192 - 512));
        assert_eq!(first(512, 9728), Some(9728), "what fits isn't cut");
        let tiny = Limits::new(&Geometry { max_transfer: 1024, ..g });
        assert_eq!(tiny.first(Op::Read, 512, 8192, std::iter::once(8192)), Some(1024));
    }

    #[test]
    fn a_block_in_more_pieces_than_the_driver_takes_cannot_be_cut() {
        let limits = Limits::new(&Geometry { max_segments: 2, ..G });
        assert_eq!(limits.first(Op::Read, 0, 1024, [100, 100, 824].into_iter()), None);
        assert_eq!(limits.first(Op::Read, 0, 1024, [100, 412, 512].into_iter()), Some(512));
    }

    #[test]
    fn requests_that_touch_merge_at_the_front_and_at_the_back_and_others_do_not() {
        let limits = Limits::new(&G);
        let merge = |a: Shape, b: Shape| limits.may_merge(&a, &b);
        for op in [Op::Read, Op::Write, Op::Discard] {
            assert_eq!(merge(shape(op, 8, 2), shape(op, 10, 1)), Some(Side::Back));
            assert_eq!(merge(shape(op, 8, 2), shape(op, 7, 1)), Some(Side::Front));
            assert_eq!(merge(shape(op, 8, 2), shape(op, 11, 1)), None, "a gap");
            assert_eq!(merge(shape(op, 8, 2), shape(op, 9, 1)), None, "an overlap");
        }
        assert_eq!(merge(shape(Op::Read, 8, 2), shape(Op::Write, 10, 1)), None);
        assert_eq!(merge(shape(Op::Flush, 0, 0), shape(Op::Flush, 0, 0)), None);
        let alone = Shape { no_merge: true, ..shape(Op::Write, 10, 1) };
        assert_eq!(merge(shape(Op::Write, 8, 2), alone), None);
        assert_eq!(merge(alone, shape(Op::Write, 11, 2)), None);
    }

    #[test]
    fn merged_requests_keep_every_limit() {
        let limits = Limits::new(&G);
        let merge = |a: Shape, b: Shape| limits.may_merge(&a, &b);
        assert_eq!(merge(shape(Op::Read, 0, 15), shape(Op::Read, 15, 1)), Some(Side::Back));
        assert_eq!(merge(shape(Op::Read, 0, 16), shape(Op::Read, 16, 1)), None, "too long");
        let many = Shape { pieces: 4, ..shape(Op::Read, 0, 2) };
        assert_eq!(merge(many, shape(Op::Read, 2, 1)), None, "too many pieces");
        let chunked = Limits::new(&Geometry { chunk: 4096, ..G });
        assert_eq!(chunked.may_merge(&shape(Op::Write, 7, 1), &shape(Op::Write, 8, 1)), None);
        assert_eq!(
            chunked.may_merge(&shape(Op::Write, 6, 1), &shape(Op::Write, 7, 1)),
            Some(Side::Back)
        );
        let last = Shape { offset: u64::MAX - 511, len: 511, ..shape(Op::Write, 0, 0) };
        assert_eq!(merge(last, shape(Op::Write, 0, 1)), None, "nothing wraps around");
    }
}
