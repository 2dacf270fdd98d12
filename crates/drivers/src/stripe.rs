//! `stripe`: RAID-0 over other block devices. Bytes go round the children, one chunk each in turn.

use std::sync::Arc;

use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Extent, ExtentKind, Extents, Geometry, Info, IoError, Op,
    ReadOnlyLatch, Request, Started, Whole,
};
use corewise_sync::SpinLock;

use crate::below;
use crate::below::StackError;

/// A stripe. It has the size of its smallest child, in whole chunks, times the number of children.
///
/// It can do what all its children can. It completes a request when all children have completed
/// their parts. If some fail, it reports the error of the first part in the order of the device. A
/// flush goes to all children.
pub struct Stripe {
    children: Vec<Arc<dyn BlockDevice>>,
    layout: Layout,
    geometry: Geometry,
}

impl Stripe {
    /// Stripes over `children`, in this order, in chunks of `chunk` bytes.
    ///
    /// # Errors
    /// If there are no children, `chunk` is no multiple of every child's block size, a child can't
    /// take a whole chunk in one transfer, or a child is smaller than one chunk.
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

/// The geometry of a stripe. Pure.
#[derive(Clone, Copy, Debug)]
struct Layout {
    n: u64,
    chunk: u64,
}

/// A part of a request that lies in one piece on one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StripePart {
    child: usize,
    offset: u64,
    len: u64,
}

impl Layout {
    /// Returns the parts of a transfer, in the order of the device: cut at each chunk's end.
    fn parts(self, mut offset: u64, mut len: u64) -> impl Iterator<Item = StripePart> {
        std::iter::from_fn(move || {
            if len == 0 {
                return None;
            }
            let (chunk, within) = (offset / self.chunk, offset % self.chunk);
            let part = StripePart {
                child: (chunk % self.n) as usize,
                offset: chunk / self.n * self.chunk + within,
                len: len.min(self.chunk - within),
            };
            offset += part.len;
            len -= part.len;
            Some(part)
        })
    }

    /// Returns the one range of `child` that a range of the device covers, which may be empty: a
    /// range that is contiguous on the device is contiguous on each child.
    fn range_on(self, child: u64, offset: u64, len: u64) -> StripePart {
        let start = self.bytes_before(child, offset);
        let end = self.bytes_before(child, offset + len);
        StripePart { child: child as usize, offset: start, len: end - start }
    }

    /// Returns the place on the device of byte `at` of `child`.
    fn place_of(self, child: u64, at: u64) -> u64 {
        (at / self.chunk * self.n + child) * self.chunk + at % self.chunk
    }

    /// Returns how many of the device's first `offset` bytes lie on `child`.
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
            ask(self, rq);
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

// Extents of a stripe: each child's answer for its part, and its place on the device.

/// A request for extents, and the children's answers so far.
struct ExtentsRequest {
    layout: Layout,
    offset: u64,
    /// L: is the lock, taken once by each child's answer; guards the request until the last of
    /// them.
    state: SpinLock<ExtentsState>,
}

struct ExtentsState {
    rq: Option<Started>,
    /// The extents of each child, in its own terms.
    found: Vec<Extents>,
    missing: usize,
    error: Option<(usize, IoError)>,
}

/// Asks each child for its part, and answers when all have answered.
pub(super) fn ask(stripe: &Stripe, rq: Started) {
    let (offset, len) = (rq.offset(), rq.len());
    let most = rq.extents().map_or(1, Extents::most);
    let layout = stripe.layout;
    let parts: Vec<_> = (0..layout.n).map(|child| layout.range_on(child, offset, len)).collect();
    let found = vec![Extents::default(); parts.len()];
    let missing = parts.iter().filter(|part| part.len != 0).count();
    let state = SpinLock::new(ExtentsState { rq: Some(rq), found, missing, error: None });
    let asked = Arc::new(ExtentsRequest { layout, offset, state });
    for part in parts.into_iter().filter(|part| part.len != 0) {
        let asked = Arc::clone(&asked);
        let rq = Request::extents_of(part.offset, part.len, most);
        let child = part.child;
        stripe.children[child].submit(rq.on_complete(move |done| {
            asked.answered(child, done.into_extents());
        }));
    }
}

impl ExtentsRequest {
    fn answered(&self, child: usize, answer: Result<Extents, IoError>) {
        let mut state = self.state.lock();
        match answer {
            Ok(extents) => state.found[child] = extents,
            // A place on the child means nothing on the device.
            Err(error) if state.error.as_ref().is_none_or(|(first, _)| child < *first) => {
                state.error = Some((child, error));
            }
            Err(_) => {}
        }
        state.missing -= 1;
        if state.missing != 0 {
            return;
        }
        let (rq, found, error) =
            (state.rq.take(), std::mem::take(&mut state.found), state.error.take());
        drop(state);
        let Some(mut rq) = rq else { return };
        if let Some((_, error)) = error {
            let (from, to) = (rq.offset(), rq.offset() + rq.len());
            return rq.complete(Err(error.at(from..to)));
        }
        let lists: Vec<Vec<Extent>> = found.iter().map(|found| found.iter().collect()).collect();
        let lists: Vec<&[Extent]> = lists.iter().map(Vec::as_slice).collect();
        let end = rq.offset() + rq.len();
        merge(self.layout, self.offset..end, &lists, |extent| rq.put_extent(extent));
        rq.complete(Ok(()));
    }
}

/// Gives the extents of a range of the device, as long as they are wanted and each child's answer
/// reaches. Pure.
fn merge(
    layout: Layout,
    range: std::ops::Range<u64>,
    lists: &[&[Extent]],
    mut put: impl FnMut(Extent) -> bool,
) {
    // For each child: the rest of its list, and the place on the child where that begins.
    let mut rest: Vec<(&[Extent], u64)> = (0..layout.n)
        .zip(lists)
        .map(|(child, list)| (*list, layout.bytes_before(child, range.start)))
        .collect();
    let mut at = range.start;
    while at < range.end {
        for (child, (list, from)) in (0..).zip(&mut rest) {
            let reached = layout.bytes_before(child, at);
            while let Some(first) = list.first().filter(|first| *from + first.len <= reached) {
                *from += first.len;
                *list = &list[1..];
            }
        }
        let (chunk, within) = (at / layout.chunk, at % layout.chunk);
        let child = (chunk % layout.n) as usize;
        let Some(here) = rest[child].0.first() else { return };
        let kind: ExtentKind = here.kind;
        // This is a whole stretch at once, if all children have the same there, or nothing more in
        // the range.
        let mut to = range.end;
        let mut all_alike = true;
        for (n, (list, from)) in (0..).zip(&rest) {
            match list.first() {
                Some(first) if first.kind == kind => {
                    to = to.min(layout.place_of(n, *from + first.len));
                }
                None if layout.bytes_before(n, range.end) == layout.bytes_before(n, at) => {}
                _ => all_alike = false,
            }
        }
        if !all_alike {
            let in_child = rest[child].1 + here.len - layout.bytes_before(child as u64, at);
            to = (at + in_child.min(layout.chunk - within)).min(range.end);
        }
        if !put(Extent { len: to - at, kind }) {
            return;
        }
        at = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_ranges_agree_with_counting_bytes() {
        for (n, chunk) in [(1, 4), (2, 4), (3, 2), (5, 1)] {
            let layout = Layout { n, chunk };
            // The place of each byte of the device, by the definition of a stripe.
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

#[cfg(test)]
mod extents_tests {
    use super::*;

    #[test]
    fn merged_extents_say_of_each_byte_what_its_child_says() {
        let kinds = [ExtentKind::Data, ExtentKind::Hole, ExtentKind::Zero];
        let mut rng = fastrand::Rng::with_seed(7);
        let mut rnd = |below: u64| rng.u64(..below);
        for round in 0..3000 {
            let layout = Layout { n: 1 + rnd(4), chunk: 1 + rnd(4) };
            let rows = 1 + rnd(6);
            let bytes = rows * layout.chunk;
            let size = bytes * layout.n;
            let disks: Vec<Vec<ExtentKind>> = (0..layout.n)
                .map(|_| {
                    let mut kind = kinds[rnd(3) as usize];
                    (0..bytes)
                        .map(|_| {
                            if rnd(4) == 0 {
                                kind = kinds[rnd(3) as usize];
                            }
                            kind
                        })
                        .collect()
                })
                .collect();
            let start = rnd(size);
            let range = start..start + 1 + rnd(size - start);
            // A child may know the beginning of its part only, but always something.
            let lists: Vec<Vec<Extent>> = (0..layout.n)
                .map(|child| {
                    let part = layout.range_on(child, range.start, range.end - range.start);
                    let known = if part.len == 0 { 0 } else { 1 + rnd(part.len) };
                    let bytes = &disks[child as usize][part.offset as usize..][..known as usize];
                    bytes
                        .chunk_by(|a, b| a == b)
                        .map(|run| Extent { len: run.len() as u64, kind: run[0] })
                        .collect()
                })
                .collect();
            let lists: Vec<&[Extent]> = lists.iter().map(Vec::as_slice).collect();
            let mut got = Vec::new();
            merge(layout, range.clone(), &lists, |extent| {
                assert_ne!(extent.len, 0);
                got.extend(std::iter::repeat_n(extent.kind, extent.len as usize));
                true
            });
            assert!(!got.is_empty() && got.len() as u64 <= range.end - range.start);
            for (at, kind) in (range.start..).zip(&got) {
                let (child, place) = (
                    at / layout.chunk % layout.n,
                    at / layout.chunk / layout.n * layout.chunk + at % layout.chunk,
                );
                assert_eq!(
                    *kind, disks[child as usize][place as usize],
                    "round {round}, byte {at}"
                );
            }
        }
    }

    #[test]
    fn stretches_that_are_alike_everywhere_take_one_step() {
        let layout = Layout { n: 4, chunk: 64 << 10 };
        let hole = [Extent { len: 1 << 38, kind: ExtentKind::Hole }];
        let mut steps = 0;
        merge(layout, 0..1 << 40, &[&hole[..]; 4], |extent| {
            steps += 1;
            assert_eq!(extent.len, 1 << 40);
            true
        });
        assert_eq!(steps, 1);
    }
}
