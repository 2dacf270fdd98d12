//! Which pages of a memory device were written: one bit a page. Those that weren't read as zeroes and have no memory.
//!
//! A bit may be set without need, and must not be clear where bytes aren't zero. A write sets its bits, stores (`Store`), and
//! looks at them again (`Look`); a discard clears bits (`Clear`) and then zeroes (`Zero`). They may overlap, where a caller
//! has both in flight at once, and then either may win:
//!
//! ```text
//! write                    discard
//! Store                    Clear
//! full fence               full fence
//! Look                     Zero
//! ```
//!
//! Bytes of a write that are there when both are over were stored behind `Zero`. So `Clear` came before `Look`, by the two
//! fences, and `Look` sets the bit again. The kernel zeroes in `madvise`, behind which a store gets a fresh page.

use std::io;

use corewise_blockmq::{Extent, ExtentKind, RequestMut};
use corewise_sync::atomic::{AtomicU64, Ordering, fence};

use super::{Mapping, PAGE};

/// Words that one request looks at, at most: 64 Ki, or 16 GiB of the device.
const WORDS: u64 = 64 << 10;
/// Pages of a word.
const BITS: u64 = 64;

/// The bits: a mapping too, so that they cost nothing where nothing is.
#[derive(Debug)]
pub(super) struct Used(Mapping);

impl Used {
    pub(super) fn new(size: u64) -> io::Result<Self> {
        Ok(Self(Mapping::new(size.div_ceil(PAGE).div_ceil(BITS) * size_of::<u64>() as u64)?))
    }

    /// Each word of a range of bytes, with the bits of the range in it.
    fn masks(&self, offset: u64, len: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (first, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
        let words = if len == 0 { 0..0 } else { first / BITS..end.div_ceil(BITS) };
        let all = self.0.words();
        words.filter_map(move |w| {
            let from = first.max(w * BITS) - w * BITS;
            let to = end.min((w + 1) * BITS) - w * BITS;
            let mask = (u64::MAX >> (BITS - (to - from))) << from;
            all.get(w as usize).map(|word| (word, mask))
        })
    }

    /// Whether no page of the range was written: all of it reads as zeroes.
    pub(super) fn is_empty(&self, offset: u64, len: u64) -> bool {
        // Relaxed: a write that has completed is ordered before by that, and of others nothing is said.
        self.masks(offset, len).all(|(word, mask)| word.load(Ordering::Relaxed) & mask == 0)
    }

    fn set(&self, offset: u64, len: u64) {
        for (word, mask) in self.masks(offset, len) {
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
        }
    }

    /// Lets `store` fill the range.
    pub(super) fn fill(&self, offset: u64, len: u64, store: impl FnOnce()) {
        self.set(offset, len);
        store();
        fence(Ordering::SeqCst);
        self.set(offset, len);
    }

    /// The caller is about to zero these whole pages.
    pub(super) fn clear(&self, offset: u64, len: u64) {
        for (word, mask) in self.masks(offset, len) {
            word.fetch_and(!mask, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Answers a request for extents.
    pub(super) fn tell(&self, rq: &mut RequestMut<'_>) {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        let most = (offset / PAGE / BITS).saturating_add(WORDS) * BITS * PAGE;
        let (mut at, end) = (offset, end.min(most));
        while at < end {
            let page = at / PAGE;
            let word = self.0.words().get((page / BITS) as usize);
            let bits = word.map_or(u64::MAX, |word| word.load(Ordering::Relaxed)) >> (page % BITS);
            let kind = if bits & 1 == 0 { ExtentKind::Hole } else { ExtentKind::Data };
            let alike = if bits & 1 == 0 { bits.trailing_zeros() } else { bits.trailing_ones() };
            // The shift brought zeroes in that stand for no page of this word.
            let pages = u64::from(alike).min(BITS - page % BITS);
            let to = ((page + pages) * PAGE).min(end);
            if !rq.put_extent(Extent { len: to - at, kind }) {
                return;
            }
            at = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use corewise_blockmq::Request;

    use super::*;

    const HOLE: ExtentKind = ExtentKind::Hole;
    const DATA: ExtentKind = ExtentKind::Data;

    fn told(used: &Used, offset: u64, len: u64) -> Vec<(u64, ExtentKind)> {
        let mut rq = Request::extents_of(offset, len, 100);
        used.tell(&mut RequestMut::from(&mut rq));
        rq.extents().unwrap().iter().map(|e| (e.len, e.kind)).collect()
    }

    #[test]
    fn pages_that_were_written_are_data_and_all_others_are_holes() {
        let size = 1 << 20;
        let used = Used::new(size).unwrap();
        assert_eq!(told(&used, 0, size), [(size, HOLE)]);
        let mut pages = vec![false; (size / PAGE) as usize];
        let mut x = 1u64;
        for _ in 0..2000 {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let offset = (x >> 20) % size / 512 * 512;
            let len = (1 + (x >> 40) % 300 * 512).min(size - offset) / 512 * 512;
            let (first, end) = (offset.div_ceil(PAGE), (offset + len) / PAGE);
            if x >> 63 == 0 && first < end {
                used.clear(first * PAGE, (end - first) * PAGE);
                pages[first as usize..end as usize].fill(false);
            } else if x >> 62 & 1 == 1 && len != 0 {
                used.fill(offset, len, || {});
                pages[(offset / PAGE) as usize..(offset + len).div_ceil(PAGE) as usize].fill(true);
            }
            let at = (x >> 30) % size / 512 * 512;
            let found = told(&used, at, size - at);
            assert_eq!(found.iter().map(|(len, _)| len).sum::<u64>(), size - at);
            let mut from = at;
            for (len, kind) in found {
                for page in from / PAGE..(from + len).div_ceil(PAGE) {
                    assert_eq!(pages[page as usize], kind == DATA, "{from} {len}");
                }
                from += len;
            }
        }
    }

    #[test]
    fn one_request_looks_at_a_bounded_part_of_a_huge_device() {
        let used = Used::new(1 << 40).unwrap();
        let found = told(&used, PAGE, (1 << 40) - PAGE);
        assert_eq!(found, [(WORDS * BITS * PAGE - PAGE, HOLE)]);
        used.fill((1 << 40) - 512, 512, || {});
        assert_eq!(told(&used, (1 << 40) - 2 * PAGE, 2 * PAGE), [(PAGE, HOLE), (PAGE, DATA)]);
    }
}
