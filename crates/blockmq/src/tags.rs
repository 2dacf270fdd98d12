//! The tags of a hardware queue: which of its slots are in use, and who waits for one.
//!
//! The kernel's tag shortage is a fence pair: the allocator marks the queue for restart, fence, and
//! tries again; a completion frees its tag, fence, and looks at the mark. Here the mark lives in
//! the **same word** as the tags, so both sides are read-modify-writes of one word and have one
//! order: either the free comes first and the allocator's second look finds the tag, or the mark
//! comes first and the free returns it. No fence is needed, and freeing a tag is one instruction.
//! `README.md` beside this file has the interleaving; `tests/loom_tags.rs` checks it.

use std::fmt;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// Tags per word: the top bit is the mark.
const PER_WORD: u32 = 63;
/// Somebody waits for a tag of this word. Set by `arm`, cleared by the free that answers it.
const WAITING: u64 = 1 << PER_WORD;

/// What [`Tags::free`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Restart` obliges the caller to run the hardware queue"]
pub enum Freed {
    /// Nobody waits.
    Quiet,
    /// The queue waits for a tag; this free answers it, so the caller has to run the queue.
    Restart,
}

/// A fixed set of tags, 0 to `depth - 1`.
pub struct Tags {
    /// A: bit n of word w is set while tag 63 w + n is in use; bit 63 is the mark.
    words: Box<[CachePadded<AtomicU64>]>,
    depth: u32,
}

impl Tags {
    /// `depth` free tags; at least one.
    pub fn new(depth: u32) -> Self {
        let depth = depth.max(1);
        let words = (0..depth.div_ceil(PER_WORD)).map(|_| CachePadded::new(AtomicU64::new(0)));
        Self { words: words.collect(), depth }
    }

    /// How many tags there are.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The bits of word `w` that are tags.
    fn mask(&self, w: usize) -> u64 {
        let left = self.depth - w as u32 * PER_WORD;
        if left >= PER_WORD { WAITING - 1 } else { (1 << left) - 1 }
    }

    /// Takes a free tag, if there is one. Any thread, though in a hardware queue only the runner.
    pub fn alloc(&self) -> Option<u32> {
        for (w, word) in self.words.iter().enumerate() {
            let mut used = word.load(Ordering::Relaxed);
            loop {
                let free = !used & self.mask(w);
                if free == 0 {
                    break;
                }
                let bit = free & free.wrapping_neg();
                // Acquire: pairs with the Release of the free, so that what the driver keeps in the
                // tag's slot is ours now.
                used = word.fetch_or(bit, Ordering::Acquire);
                if used & bit == 0 {
                    return Some(w as u32 * PER_WORD + bit.trailing_zeros());
                }
            }
        }
        None
    }

    /// Announces that the caller goes without a tag: the next free of each word will ask for a
    /// restart. Returns how many tags were in use. The caller **must** try [`Tags::alloc`] once
    /// more after this: a tag freed before the mark was there tells nobody.
    #[must_use = "with nothing in use, no free will ever come"]
    pub fn arm(&self) -> u32 {
        // Mark. AcqRel: the free that returns the mark sees the dispatch list as we left it.
        self.words
            .iter()
            .map(|word| (word.fetch_or(WAITING, Ordering::AcqRel) & !WAITING).count_ones())
            .sum()
    }

    /// Gives a tag back.
    pub fn free(&self, tag: u32) -> Freed {
        let (word, bit) = self.slot(tag);
        // Free: clears the tag and takes the mark in one step. Release: see `alloc`.
        let was = word.fetch_and(!(bit | WAITING), Ordering::AcqRel);
        debug_assert!(was & bit != 0, "tag {tag} is freed while it is free");
        if was & WAITING != 0 { Freed::Restart } else { Freed::Quiet }
    }

    /// Gives a tag back that was never used, and leaves the mark: the runner takes back its own.
    pub fn put_back(&self, tag: u32) {
        let (word, bit) = self.slot(tag);
        word.fetch_and(!bit, Ordering::Release);
    }

    /// How many tags are in use, a moment ago.
    pub fn in_use(&self) -> u32 {
        self.words.iter().map(|w| (w.load(Ordering::Relaxed) & !WAITING).count_ones()).sum()
    }

    fn slot(&self, tag: u32) -> (&AtomicU64, u64) {
        (&self.words[(tag / PER_WORD) as usize], 1 << (tag % PER_WORD))
    }
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tags")
            .field("depth", &self.depth)
            .field("in_use", &self.in_use())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_tag_is_given_once_and_a_freed_one_again() {
        for depth in [1, 2, 62, 63, 64, 126, 127, 200] {
            let tags = Tags::new(depth);
            let mut seen: Vec<_> = std::iter::from_fn(|| tags.alloc()).collect();
            assert_eq!(seen.len() as u32, depth);
            assert_eq!(tags.in_use(), depth);
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen, (0..depth).collect::<Vec<_>>());
            let last = depth - 1;
            assert_eq!(tags.free(last), Freed::Quiet);
            assert_eq!(tags.alloc(), Some(last));
        }
    }

    #[test]
    fn the_first_free_after_a_mark_asks_for_the_restart_and_the_second_does_not() {
        let tags = Tags::new(2);
        let (a, b) = (tags.alloc().unwrap(), tags.alloc().unwrap());
        assert_eq!(tags.alloc(), None);
        assert_eq!(tags.arm(), 2);
        assert_eq!(tags.alloc(), None, "the mark is no tag");
        assert_eq!(tags.free(a), Freed::Restart);
        assert_eq!(tags.free(b), Freed::Quiet);
    }

    #[test]
    fn a_tag_put_back_unused_leaves_the_mark_for_a_real_free() {
        let tags = Tags::new(2);
        let (a, b) = (tags.alloc().unwrap(), tags.alloc().unwrap());
        assert_eq!(tags.arm(), 2);
        tags.put_back(a);
        assert_eq!(tags.free(b), Freed::Restart);
    }
}
