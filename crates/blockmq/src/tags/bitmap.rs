//! The bitmap of tags: words of their own cache lines, and each CPU begins in another one.
//!
//! The kernel's `sbitmap`. A word holds 32 tags at most. The bits above are the two marks of the
//! waiting protocols (`README.md`), so the thread that returns a tag learns in the same step
//! whether there is a waiter.

use std::time::Duration;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A waiter stands in line, so only the line's server may take a tag of this word. Set and cleared
/// by that server.
pub(super) const WAITING: u64 = 1 << 63;
/// The owner of the tags wants to be run at the next free. Set by the owner, taken by that free.
pub(super) const RESTART: u64 = 1 << 62;

/// Some tags of one word, taken by one instruction. Not given back when dropped.
#[derive(Clone, Copy, Debug, Default)]
pub struct TagBatch {
    /// The first tag of the word.
    first: u32,
    /// Bits of the word's tags that were taken.
    bits: u64,
}

impl TagBatch {
    /// Makes a batch of one tag, which the caller has.
    pub(crate) fn one(tag: u32) -> Self {
        Self { first: tag, bits: 1 }
    }

    /// Takes a tag out of the batch.
    pub fn pop(&mut self) -> Option<u32> {
        if self.bits == 0 {
            return None;
        }
        let tag = self.first + self.bits.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(tag)
    }

    /// Returns how many are left in it.
    pub fn len(&self) -> u32 {
        self.bits.count_ones()
    }

    /// Returns true if none is left in it.
    pub fn is_empty(&self) -> bool {
        self.bits == 0
    }
}

/// The words in which a CPU looks for a tag.
#[derive(Debug)]
struct Place {
    /// I: the word in which the CPU looks first.
    home: u32,
    /// A: the word in which the CPU last found a tag that wasn't at home. Relaxed: only a hint.
    hint: AtomicU32,
}

/// The tags 0 to `depth - 1`.
#[derive(Debug)]
pub(super) struct Bitmap {
    /// A: bit n of word w is set while that tag is in use; and the marks.
    words: Box<[CachePadded<AtomicU64>]>,
    /// The start of each CPU's search.
    places: Box<[CachePadded<Place>]>,
    shift: u32,
    depth: u32,
}

impl Bitmap {
    /// Creates `depth` free tags, at least one, for `cpus` CPUs.
    pub(super) fn new(depth: u32, cpus: usize) -> Self {
        let (depth, cpus) = (depth.max(1), cpus.max(1));
        let shift = shift(depth, cpus);
        let words = depth.div_ceil(1 << shift) as usize;
        let place = |cpu| {
            let home = home(cpu, cpus, words) as u32;
            CachePadded::new(Place { home, hint: AtomicU32::new(home) })
        };
        Self {
            words: (0..words).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            places: (0..cpus).map(place).collect(),
            shift,
            depth,
        }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the bits of word `w` that are tags.
    fn mask(&self, w: usize) -> u64 {
        let left = self.depth - ((w as u32) << self.shift);
        (1 << left.min(1 << self.shift)) - 1
    }

    /// Takes up to `most` tags of one word, at least one; `None` if none is free. `in_turn`: the
    /// caller serves the line; no other thread takes a tag while a waiter stands there.
    #[inline]
    pub(super) fn take(&self, cpu: usize, most: u32, in_turn: bool) -> Option<TagBatch> {
        let n = self.places.len();
        let place = &self.places[if cpu < n { cpu } else { cpu % n }];
        let home = place.home as usize;
        if let Some(taken) = self.take_from(home, most, in_turn) {
            return Some(taken);
        }
        self.take_elsewhere(place, most, in_turn)
    }

    fn take_elsewhere(&self, place: &Place, most: u32, in_turn: bool) -> Option<TagBatch> {
        let words = self.words.len();
        let hint = place.hint.load(Ordering::Relaxed) as usize;
        let mut w = hint;
        loop {
            if let Some(taken) = self.take_from(w, most, in_turn) {
                if w != hint {
                    place.hint.store(w as u32, Ordering::Relaxed);
                }
                return Some(taken);
            }
            w = if w + 1 == words { 0 } else { w + 1 };
            if w == hint {
                return None;
            }
        }
    }

    #[inline]
    fn take_from(&self, w: usize, most: u32, in_turn: bool) -> Option<TagBatch> {
        let mut was = self.words[w].load(Ordering::Relaxed);
        loop {
            if was & WAITING != 0 && !in_turn {
                return None;
            }
            let bits = lowest(!was & self.mask(w), most);
            if bits == 0 {
                return None;
            }
            // Acquire: pairs with the Release of the free, so that this thread sees the driver's
            // writes to the tag's slot.
            match self.words[w].compare_exchange_weak(
                was,
                was | bits,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(TagBatch { first: (w as u32) << self.shift, bits }),
                Err(now) => was = now,
            }
        }
    }

    /// Returns true if a tag was free a moment ago.
    pub(super) fn any_free(&self) -> bool {
        (0..self.words.len()).any(|w| !self.words[w].load(Ordering::Relaxed) & self.mask(w) != 0)
    }

    /// Returns tags, and takes the marks `taking` of their word in the same step. Returns the marks
    /// that were there.
    #[inline]
    pub(super) fn free(&self, tags: TagBatch, taking: u64) -> u64 {
        let (w, bit) = (tags.first >> self.shift, tags.first & ((1 << self.shift) - 1));
        let bits = tags.bits << bit;
        // Free. Release: see `take_from`. Acquire: the thread that set a mark published its need
        // before.
        let was = self.words[w as usize].fetch_and(!(bits | taking), Ordering::AcqRel);
        debug_assert!(was & bits == bits, "tags {tags:?} are freed while they are free");
        was & (WAITING | RESTART)
    }

    /// Sets a mark in every word, and returns how many tags were in use.
    pub(super) fn set_mark(&self, mark: u64) -> u32 {
        let set = |w: &CachePadded<AtomicU64>| w.fetch_or(mark, Ordering::AcqRel);
        self.words.iter().map(|w| used(set(w))).sum()
    }

    /// Does the same, but doesn't write words that have the mark already. The thread that takes the
    /// mark has to tell the caller in a way that can't be missed: `README.md` says why that is
    /// enough.
    pub(super) fn renew_mark(&self, mark: u64) -> u32 {
        let renew = |w: &CachePadded<AtomicU64>| match w.load(Ordering::Relaxed) {
            was if was & mark != 0 => was,
            _ => w.fetch_or(mark, Ordering::AcqRel),
        };
        self.words.iter().map(|w| used(renew(w))).sum()
    }

    /// Clears a mark in every word.
    pub(super) fn clear_mark(&self, mark: u64) {
        for w in &self.words {
            w.fetch_and(!mark, Ordering::AcqRel);
        }
    }

    /// Returns how many tags were in use a moment ago.
    pub(super) fn in_use(&self) -> u32 {
        self.words.iter().map(|w| used(w.load(Ordering::Relaxed))).sum()
    }
}

fn used(word: u64) -> u32 {
    (word & !(WAITING | RESTART)).count_ones()
}

/// Returns the lowest `most` of these bits.
#[inline]
fn lowest(bits: u64, most: u32) -> u64 {
    if most == 1 {
        return bits & bits.wrapping_neg();
    }
    if bits.count_ones() <= most {
        return bits;
    }
    let mut rest = bits;
    for _ in 0..most {
        rest &= rest - 1;
    }
    bits ^ rest
}

// Policy: the spread of tags over words, and the share of one user of a set. Pure.

/// Log2 of the most tags of one word; the bits above are marks.
pub(super) const MOST_SHIFT: u32 = 5;
/// Log2 of the least tags of a word, if there are as many: a word costs a cache line.
const LEAST_SHIFT: u32 = 2;
/// Largest number of words that is made for the sake of the CPUs: a search that finds no tag has
/// looked at all of them.
const MOST_WORDS: u32 = 64;
/// Number of waiters that are served before any of them is woken: the kernel's `SBQ_WAKE_BATCH`.
pub(super) const WAKE_BATCH: usize = 8;
/// Least share of each user of a shared set, however many users there are: the kernel's number.
const LEAST_SHARE: u32 = 4;
/// Shortest time between two searches for users that have become idle.
pub(super) const SWEEP_PAUSE: Duration = Duration::from_millis(20);

/// Returns log2 of the tags of each word: as large as it may be for each CPU to have a word of its
/// own.
pub(super) fn shift(depth: u32, cpus: usize) -> u32 {
    let wanted = u32::try_from(cpus).unwrap_or(MOST_WORDS).clamp(1, MOST_WORDS);
    (LEAST_SHIFT..MOST_SHIFT).rev().fold(MOST_SHIFT, |shift, less| {
        if depth.div_ceil(1 << shift) < wanted { less } else { shift }
    })
}

/// Returns the word in which CPU `cpu` of `cpus` looks first.
pub(super) fn home(cpu: usize, cpus: usize, words: usize) -> usize {
    cpu % cpus.max(1) * words / cpus.max(1)
}

/// Returns how many tags of a set of `depth` one of `users` active users may have
/// (`hctx_may_queue`). It is at least four. With very many users the shares add up to more than the
/// set, and a user that finds nothing waits in line.
pub(super) fn share(depth: u32, users: u32) -> u32 {
    match users {
        0 | 1 => depth,
        _ => depth.div_ceil(users).max(LEAST_SHARE).min(depth),
    }
}

/// Returns true if a user has been idle from one sweep to the next: it has no tag, waits for none,
/// and took none meanwhile.
pub(super) fn is_idle(in_use: u32, waits: bool, taken_then: u64, taken_now: u64) -> bool {
    in_use == 0 && !waits && taken_then == taken_now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_is_given_once_and_a_freed_one_again() {
        for cpus in [1, 3, 64] {
            for depth in [1, 2, 31, 32, 33, 64, 126, 127, 200] {
                let tags = Bitmap::new(depth, cpus);
                let take = |n| tags.take(n as usize, 1, false)?.pop();
                let mut seen: Vec<_> = (0..depth).map(|n| take(n).unwrap()).collect();
                assert_eq!(take(0), None);
                assert_eq!(tags.in_use(), depth);
                seen.sort_unstable();
                assert_eq!(seen, (0..depth).collect::<Vec<_>>());
                for tag in [depth - 1, depth / 2, 0] {
                    assert_eq!(tags.free(TagBatch::one(tag), 0), 0);
                    assert_eq!(take(5), Some(tag), "from any CPU");
                }
            }
        }
    }

    #[test]
    fn cpus_begin_in_words_of_their_own_and_come_back_to_them() {
        let tags = Bitmap::new(32, 4);
        let firsts = [0, 1, 2, 3].map(|cpu| tags.take(cpu, 1, false).unwrap().pop().unwrap());
        assert_eq!(firsts, [0, 8, 16, 24]);
        let rest = tags.take(0, 8, false).unwrap();
        assert_eq!(rest.len(), 7);
        let elsewhere = tags.take(0, 1, false).unwrap();
        assert_eq!(elsewhere.first, 8, "the home is full");
        let _ = tags.free(TagBatch::one(0), 0);
        assert_eq!(tags.take(0, 1, false).unwrap().pop(), Some(0), "home again");
    }

    #[test]
    fn a_batch_is_of_one_word_and_no_more_than_asked_for() {
        let tags = Bitmap::new(40, 1);
        let _ = tags.take(0, 30, false);
        let mut two = tags.take(0, 8, false).unwrap();
        assert_eq!((two.pop(), two.pop(), two.pop()), (Some(30), Some(31), None));
        let mut five = tags.take(0, 5, false).unwrap();
        assert_eq!((five.len(), five.pop()), (5, Some(32)));
        let _ = tags.free(five, 0);
        assert_eq!(tags.in_use(), 33, "what is left of a batch is given back together");
    }

    #[test]
    fn a_caller_outside_the_line_gets_no_tag_while_others_wait() {
        let tags = Bitmap::new(2, 1);
        assert_eq!(tags.set_mark(WAITING), 0);
        assert!(tags.take(0, 1, false).is_none());
        let mut mine = tags.take(0, 1, true).unwrap();
        tags.clear_mark(WAITING);
        assert_eq!(tags.take(0, 9, false).unwrap().pop(), Some(1));
        assert_eq!(tags.free(TagBatch::one(mine.pop().unwrap()), 0), 0);
    }

    #[test]
    fn a_free_takes_the_mark_that_it_is_to_take_and_leaves_the_other() {
        let tags = Bitmap::new(2, 1);
        let (a, b) = (tags.take(0, 1, false).unwrap(), tags.take(0, 1, false).unwrap());
        assert_eq!(tags.set_mark(WAITING), 2);
        assert_eq!(tags.renew_mark(RESTART), 2);
        assert_eq!(tags.free(a, RESTART), WAITING | RESTART);
        assert_eq!(tags.free(b, RESTART), WAITING);
    }
}

#[cfg(test)]
mod policy_tests {
    use super::*;

    #[test]
    fn each_cpu_has_a_word_of_its_own_where_there_are_tags_enough() {
        let words = |depth: u32, cpus| depth.div_ceil(1 << shift(depth, cpus));
        assert_eq!(words(128, 1), 4, "no more words than needed for one CPU");
        assert_eq!(words(1, 64), 1);
        assert_eq!(words(128, 16), 16);
        assert_eq!(words(128, 64), 32, "four tags to a word at least");
        assert_eq!(words(1024, 4), 32);
        assert_eq!(words(1024, 512), 64, "more CPUs share words");
        for cpus in [1, 2, 3, 64, 500] {
            for words in [1, 2, 7, 64] {
                let homes: Vec<_> = (0..cpus).map(|cpu| home(cpu, cpus, words)).collect();
                assert!(homes.is_sorted() && homes.iter().all(|&home| home < words));
                let most = |w| homes.iter().filter(|&&home| home == w).count();
                assert!((0..words).map(most).max() <= Some(cpus.div_ceil(words)));
            }
        }
        assert_eq!(home(7, 4, 4), 3, "a CPU that isn't known borrows a home");
    }

    #[test]
    fn shares_are_equal_and_never_less_than_four_nor_more_than_there_are() {
        assert_eq!([0, 1, 2, 3, 4].map(|users| share(64, users)), [64, 64, 32, 22, 16]);
        assert_eq!(share(64, 1000), 4);
        assert_eq!(share(3, 2), 3);
        assert_eq!(share(1, 1000), 1);
    }

    #[test]
    fn a_user_is_idle_only_if_it_took_nothing_between_two_looks() {
        assert!(is_idle(0, false, 7, 7));
        assert!(!is_idle(1, false, 7, 7), "something is in flight for very long");
        assert!(!is_idle(0, false, 7, 8), "one at a time, always done when somebody looks");
        assert!(!is_idle(0, true, 7, 7), "others have all tags");
    }
}
