//! `stripe`: RAID-0 over other block devices. Bytes go round the children, one chunk each in turn.

mod extents;

use std::sync::Arc;

use crate::below::{self, StackError};

/// A stripe. It has the size of its smallest child, in whole chunks, times the number of children.
use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Geometry, Info, Op, ReadOnlyLatch, Started, Whole,
};

///
/// It can do what all its children can. It completes a request when all children have completed
/// their parts; where some fail, the error of the first part in the order of the device is told.
/// A flush goes to all children.
pub struct Stripe {
    children: Vec<Arc<dyn BlockDevice>>,
    layout: Layout,
    geometry: Geometry,
}

impl Stripe {
    /// Stripes over `children`, in this order, in chunks of `chunk` bytes.
    ///
    /// # Errors
    /// Where there are no children, `chunk` is no multiple of every child's block size, a child
    /// can't take a whole chunk in one transfer, or a child is smaller than one chunk.
    pub fn new(children: Vec<Arc<dyn BlockDevice>>, chunk: u32) -> Result<Self, StackError> {
        let Some(all) = below::combine(&children) else {
            return Err(StackError::new("a stripe needs at least one child"));
        };
        if chunk == 0 || chunk.checked_rem(all.block_size) != Some(0) {
            return Err(StackError::new(format!(
                "the chunk has {chunk} bytes; it must be a multiple of {}, the largest block size \
                 of the children",
                all.block_size
            )));
        }
        if chunk > all.max_transfer {
            return Err(StackError::new(format!(
                "the chunk has {chunk} bytes; a child takes at most {} at once",
                all.max_transfer
            )));
        }
        let layout = Layout { n: children.len() as u64, chunk: u64::from(chunk) };
        let rows = all.size / layout.chunk;
        let size = rows.checked_mul(layout.chunk).and_then(|s| s.checked_mul(layout.n));
        let Some(size) = size.filter(|&size| size != 0) else {
            return Err(StackError::new(format!(
                "the smallest child has {} bytes: less than one chunk of {chunk}, or too many to \
                 address",
                all.size
            )));
        };
        let geometry =
            Geometry { size, preferred: chunk, max_transfer: Geometry::new(0).max_transfer, ..all };
        Ok(Self { children, layout, geometry })
    }
}

/// Where bytes lie. Pure.
#[derive(Clone, Copy, Debug)]
struct Layout {
    n: u64,
    chunk: u64,
}

/// A part of a request that lies in one piece on one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    child: usize,
    offset: u64,
    len: u64,
}

impl Layout {
    /// The parts of a transfer, in the order of the device: cut at each chunk's end.
    fn parts(self, mut offset: u64, mut len: u64) -> impl Iterator<Item = Part> {
        std::iter::from_fn(move || {
            if len == 0 {
                return None;
            }
            let (chunk, within) = (offset / self.chunk, offset % self.chunk);
            let part = Part {
                child: (chunk % self.n) as usize,
                offset: chunk / self.n * self.chunk + within,
                len: len.min(self.chunk - within),
            };
            offset += part.len;
            len -= part.len;
            Some(part)
        })
    }

    /// The one range of `child` that a range of the device covers, which may be empty: a range
    /// that is contiguous on the device is contiguous on each child.
    fn range_on(self, child: u64, offset: u64, len: u64) -> Part {
        let start = self.bytes_before(child, offset);
        let end = self.bytes_before(child, offset + len);
        Part { child: child as usize, offset: start, len: end - start }
    }

    /// Where on the device byte `at` of `child` lies.
    fn place_of(self, child: u64, at: u64) -> u64 {
        (at / self.chunk * self.n + child) * self.chunk + at % self.chunk
    }

    /// How many of the device's first `offset` bytes lie on `child`.
    fn bytes_before(self, child: u64, offset: u64) -> u64 {
        let (chunk, within) = (offset / self.chunk, offset % self.chunk);
        let (row, at) = (chunk / self.n, chunk % self.n);
        row * self.chunk
            + match child.cmp(&at) {
                std::cmp::Ordering::Less => self.chunk,
                std::cmp::Ordering::Equal => within,
                std::cmp::Ordering::Greater => 0,
            }
    }
}

impl Driver for Stripe {
    fn info(&self) -> Info {
        Info {
            hw_queues: usize::MAX,
            merges: false,
            knows_extents: true,
            read_only_latch: ReadOnlyLatch::any(
                self.children.iter().map(|child| child.read_only_latch()),
            ),
            ..Info::new("stripe", self.geometry)
        }
    }

    fn is_outdated(&self) -> bool {
        self.children.iter().any(|child| child.is_outdated())
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        let (op, offset, len) = (rq.op(), rq.offset(), rq.len());
        if op == Op::Extents {
            extents::ask(self, rq);
            return Dispatch::Started;
        }
        let whole = Whole::new(rq);
        match op {
            Op::Read | Op::Write => {
                let mut at = 0;
                for part in self.layout.parts(offset, len) {
                    let piece = whole.part(at, part.len, part.offset);
                    self.children[part.child].submit(piece);
                    at += part.len;
                }
            }
            Op::Flush => {
                for child in &self.children {
                    child.submit(whole.part(0, 0, 0));
                }
            }
            _ => {
                for child in 0..self.layout.n {
                    let range = self.layout.range_on(child, offset, len);
                    if range.len != 0 {
                        let piece = whole.scattered_part(range.offset, range.len);
                        self.children[range.child].submit(piece);
                    }
                }
            }
        }
        Dispatch::Started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_ranges_agree_with_counting_bytes() {
        for (n, chunk) in [(1, 4), (2, 4), (3, 2), (5, 1)] {
            let layout = Layout { n, chunk };
            // Where each byte of the device lies, by the definition of a stripe.
            let place = |b: u64| ((b / chunk % n) as usize, b / chunk / n * chunk + b % chunk);
            for offset in 0..30 {
                for len in 0..30 {
                    let want: Vec<_> = (offset..offset + len).map(place).collect();
                    let got: Vec<_> = layout
                        .parts(offset, len)
                        .flat_map(|p| (p.offset..p.offset + p.len).map(move |b| (p.child, b)))
                        .collect();
                    assert_eq!(got, want);
                    for child in 0..n {
                        let range = layout.range_on(child, offset, len);
                        let of_child = want.iter().filter(|(c, _)| *c == child as usize);
                        assert!(
                            of_child.map(|&(_, b)| b).eq(range.offset..range.offset + range.len)
                        );
                    }
                }
            }
        }
    }
}
