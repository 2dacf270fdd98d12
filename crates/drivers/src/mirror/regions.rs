//! The regions of a mirror: the writers there, and the record's word about them. Each has one word,
//! so that every question has one answer at a time; `README.md` beside this file argues it.
//!
//! | part of the word | set by | means |
//! |---|---|---|
//! | writers | a write that enters, until it exits | number of writes in flight there |
//! | DIRTY | the keeper, once it is durable on disk | the record says: the legs may differ here |
//! | RECENT | a write that enters | the keeper leaves DIRTY alone for another round |
//! | STALE | the finder of a difference | the legs differ here, as far as known: resync it |
//! | LOCKED | the resync | no write may enter; without writers, the resync has it |

use std::ops::Range;

use corewise_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use corewise_sync::{CachePadded, SpinLock};

const WRITERS: u32 = 0xFFFF;
const DIRTY: u32 = 1 << 16;
const RECENT: u32 = 1 << 17;
const STALE: u32 = 1 << 18;
const LOCKED: u32 = 1 << 19;

/// The result of [`Regions::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Wait { wake: true }` obliges the caller to run the resync"]
pub enum RegionEntry {
    /// The write may begin.
    In,
    /// The write has to wait: for the record, or for the resync. If `wake`, the resync waits for a
    /// region that has just been left again.
    Wait {
        /// True if the caller has to run the resync.
        wake: bool,
    },
}

/// The age of a region that the keeper might clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionAge {
    /// The region is clean.
    Clean,
    /// The region was written to since the last look, or just now, or isn't in sync yet: not now.
    Young,
    /// The region was not written to since the last look.
    Old,
}

/// The words of all regions of a device.
pub struct Regions {
    /// A: one for each region; the orderings are argued where it is changed.
    words: Box<[AtomicU32]>,
    /// A: number of stale regions. Relaxed: a reader that sees an old number reads from a leg as it
    /// could have done a moment before.
    stale: AtomicUsize,
    shift: u32,
}

impl Regions {
    /// Regions of `1 << shift` bytes for a device of `size` bytes, all of them clean.
    pub fn new(size: u64, shift: u32) -> Self {
        let n = size.div_ceil(1 << shift) as usize;
        Self {
            words: (0..n).map(|_| AtomicU32::new(0)).collect(),
            stale: AtomicUsize::new(0),
            shift,
        }
    }

    /// Returns the number of regions.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns true if there is none: a device without a byte.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the bytes of a region; the last one may have fewer.
    pub fn size(&self) -> u64 {
        1 << self.shift
    }

    /// Returns the regions that a range of bytes touches.
    pub fn of(&self, offset: u64, len: u64) -> Range<usize> {
        let end = (offset + len).div_ceil(1 << self.shift);
        (offset >> self.shift) as usize..end as usize
    }

    /// Begins a write: it enters all of these regions or none. Lock-free.
    pub fn enter(&self, regions: Range<usize>) -> RegionEntry {
        for n in regions.clone() {
            // Acquire pairs with the Release of `mark` (the record that the write relies on is
            // durable), and with that of `unlock` (its bytes come after those that the resync
            // copied).
            let entered =
                self.words[n].fetch_update(Ordering::Acquire, Ordering::Relaxed, |word| {
                    let may = word & DIRTY != 0 && word & LOCKED == 0 && word & WRITERS != WRITERS;
                    may.then_some((word | RECENT) + 1)
                });
            if entered.is_err() {
                return RegionEntry::Wait { wake: self.exit(regions.start..n) };
            }
        }
        RegionEntry::In
    }

    /// Ends a write, which has ended on all legs. True: the resync waits for one of these regions,
    /// which has no writer left, and the caller has to run it.
    #[must_use = "true obliges the caller to run the resync"]
    pub fn exit(&self, regions: Range<usize>) -> bool {
        regions.fold(false, |wake, n| {
            // Release pairs with the Acquire of `lock` and `is_held`: the resync reads the written
            // bytes. It also pairs with that of `age`: a leg that the write has dropped is seen as
            // dropped.
            let before = self.words[n].fetch_sub(1, Ordering::AcqRel);
            wake | (before & (LOCKED | WRITERS) == LOCKED | 1)
        })
    }

    /// Keeps writes out of region `n`, for the resync. True if it has the region from now on; else
    /// the last writer's `exit` returns that. No other thread locks it.
    pub fn lock(&self, n: usize) -> bool {
        self.words[n].fetch_or(LOCKED, Ordering::AcqRel) & WRITERS == 0
    }

    /// Returns true if a lock that had to wait holds by now.
    pub fn is_held(&self, n: usize) -> bool {
        self.words[n].load(Ordering::Acquire) & (LOCKED | WRITERS) == LOCKED
    }

    /// Lets writes in again; the caller then runs the keeper, which has the waiting ones. If
    /// `synced`, the legs are alike there now.
    pub fn unlock(&self, n: usize, synced: bool) {
        let gone = if synced { LOCKED | STALE } else { LOCKED };
        let before = self.words[n].fetch_and(!gone, Ordering::AcqRel);
        if synced && before & STALE != 0 {
            self.stale.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Marks region `n` as one where the legs may differ, once the keeper has made that durable.
    pub fn mark(&self, n: usize) {
        // RECENT: the write that it was made for hasn't entered yet.
        self.words[n].fetch_or(DIRTY | RECENT, Ordering::Release);
    }

    /// Marks region `n` as stale: the legs differ there, or one can't be read. The caller then runs
    /// the resync. A resync that is inside the region may overlook a write that isn't: then the
    /// next one finds it.
    pub fn mark_stale(&self, n: usize) {
        if self.words[n].fetch_or(STALE, Ordering::AcqRel) & STALE == 0 {
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true if the record on disk says that the legs may differ in region `n`.
    pub fn is_dirty(&self, n: usize) -> bool {
        self.words[n].load(Ordering::Acquire) & DIRTY != 0
    }

    /// Returns true if the legs differ somewhere in these regions, as far as is known.
    pub fn is_stale(&self, mut regions: Range<usize>) -> bool {
        self.stale() != 0 && regions.any(|n| self.words[n].load(Ordering::Acquire) & STALE != 0)
    }

    /// Returns the number of stale regions.
    pub fn stale(&self) -> usize {
        self.stale.load(Ordering::Relaxed)
    }

    /// Returns the first stale region from `from` on.
    pub fn next_stale(&self, from: usize) -> Option<usize> {
        (from..self.len()).find(|&n| self.words[n].load(Ordering::Acquire) & STALE != 0)
    }

    /// Returns a region's age for the keeper: one that was written to since the last look is spared
    /// once.
    pub fn age(&self, n: usize) -> RegionAge {
        // Acquire pairs with the Release of `exit`.
        let word = self.words[n].load(Ordering::Acquire);
        if word & DIRTY == 0 {
            return RegionAge::Clean;
        }
        if word & RECENT != 0 {
            self.words[n].fetch_and(!RECENT, Ordering::Relaxed);
            return RegionAge::Young;
        }
        if word == DIRTY { RegionAge::Old } else { RegionAge::Young }
    }

    /// Takes DIRTY away from a region that the keeper has found old, after all legs have made their
    /// content durable. False if a write has entered since: then nothing is changed.
    pub fn clean(&self, n: usize) -> bool {
        // The whole word is compared: a write that has entered since, even if it is gone again, has
        // set RECENT.
        self.words[n].compare_exchange(DIRTY, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

// Changes of a mirror that are in flight at the same time, and touch the same bytes. Each leg may
// do these in an order of its own: once both are acknowledged the legs differ. So the regions where
// they overlap are marked stale before the later one is sent, and the resync makes them alike when
// both are gone.

/// Number of lists that regions share.
const LISTS: usize = 16;

/// The bytes of the changes in flight to the legs.
pub(super) struct Overlaps {
    /// L: is the lock, held for a look at the changes in flight in its regions; guards their bytes.
    lists: [CachePadded<SpinLock<Vec<Range<u64>>>>; LISTS],
}

impl Default for Overlaps {
    fn default() -> Self {
        Self { lists: std::array::from_fn(|_| CachePadded::new(SpinLock::new(Vec::new()))) }
    }
}

impl Overlaps {
    /// Begins a change of `bytes`, in `regions`. Returns the regions that others change at the same
    /// time, from the first to the last of these. Any context.
    pub(super) fn begin(&self, regions: Range<usize>, bytes: &Range<u64>) -> Option<Range<u64>> {
        // Two that overlap share a region, so the later one finds the other in its list.
        let mut shared: Option<Range<u64>> = None;
        for n in lists(regions) {
            let mut list = self.lists[n].lock();
            for other in list.iter() {
                let (start, end) = (bytes.start.max(other.start), bytes.end.min(other.end));
                if start < end {
                    let so_far = shared.unwrap_or(start..end);
                    shared = Some(so_far.start.min(start)..so_far.end.max(end));
                }
            }
            list.push(bytes.clone());
        }
        shared
    }

    /// Ends a change that [began](Overlaps::begin): it has ended on all legs. Any context.
    pub(super) fn end(&self, regions: Range<usize>, bytes: &Range<u64>) {
        for n in lists(regions) {
            let mut list = self.lists[n].lock();
            // Any entry with the same bytes will do.
            if let Some(at) = list.iter().position(|other| other == bytes) {
                list.swap_remove(at);
            }
        }
    }
}

fn lists(regions: Range<usize>) -> impl Iterator<Item = usize> {
    regions.take(LISTS).map(|n| n % LISTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirty(n: usize) -> Regions {
        let regions = Regions::new(n as u64 * 4096, 12);
        (0..n).for_each(|n| regions.mark(n));
        regions
    }

    #[test]
    fn a_range_touches_the_regions_that_its_bytes_lie_in() {
        let regions = Regions::new(4 * 4096 + 1, 12);
        assert_eq!(regions.len(), 5);
        assert_eq!(regions.of(0, 4096), 0..1);
        assert_eq!(regions.of(4095, 2), 0..2);
        assert_eq!(regions.of(8192, 8193), 2..5);
        assert!(regions.of(8192, 0).is_empty());
    }

    #[test]
    fn a_write_enters_all_its_regions_or_none() {
        let regions = Regions::new(4 * 4096, 12);
        regions.mark(0);
        assert_eq!(regions.enter(0..2), RegionEntry::Wait { wake: false });
        assert!(regions.lock(0), "nobody was left in it");
        regions.mark(1);
        assert_eq!(regions.enter(0..2), RegionEntry::Wait { wake: false });
        regions.unlock(0, false);
        assert_eq!(regions.enter(0..2), RegionEntry::In);
        assert!(!regions.exit(0..2));
    }

    #[test]
    fn the_last_writer_out_of_a_locked_region_runs_the_resync() {
        let regions = dirty(2);
        assert_eq!((regions.enter(0..1), regions.enter(0..2)), (RegionEntry::In, RegionEntry::In));
        assert!(!regions.lock(0));
        assert!(!regions.exit(0..1) && !regions.is_held(0));
        assert!(regions.exit(0..2) && regions.is_held(0));
    }

    #[test]
    fn a_write_that_has_to_leave_again_runs_the_resync_that_came_meanwhile() {
        let regions = dirty(2);
        assert!(regions.lock(1));
        // Between the entry into region 0 and the refusal by region 1 a lock can come.
        assert_eq!(regions.enter(0..1), RegionEntry::In);
        assert!(!regions.lock(0));
        assert!(regions.exit(0..1));
    }

    #[test]
    fn a_region_is_cleaned_only_where_nobody_has_entered_since_the_look() {
        let regions = dirty(1);
        assert_eq!(regions.age(0), RegionAge::Young);
        assert_eq!(regions.age(0), RegionAge::Old);
        assert_eq!(regions.enter(0..1), RegionEntry::In);
        assert!(!regions.exit(0..1));
        assert!(!regions.clean(0), "it was written to meanwhile");
        assert_eq!((regions.age(0), regions.age(0)), (RegionAge::Young, RegionAge::Old));
        assert!(regions.clean(0));
        assert_eq!(regions.age(0), RegionAge::Clean);
        assert_eq!(regions.enter(0..1), RegionEntry::Wait { wake: false });
    }

    #[test]
    fn stale_regions_are_counted_and_are_never_old() {
        let regions = dirty(3);
        regions.mark_stale(1);
        regions.mark_stale(1);
        assert_eq!(
            (regions.stale(), regions.next_stale(0), regions.next_stale(2)),
            (1, Some(1), None)
        );
        assert!(regions.is_stale(0..3) && !regions.is_stale(2..3));
        regions.age(1);
        assert_eq!(regions.age(1), RegionAge::Young);
        assert!(regions.lock(1));
        regions.unlock(1, true);
        assert_eq!((regions.stale(), regions.age(1)), (0, RegionAge::Old));
    }

    #[test]
    fn changes_of_the_same_bytes_are_found_as_long_as_both_are_in_flight() {
        let overlaps = Overlaps::default();
        assert_eq!(overlaps.begin(0..1, &(0..4096)), None);
        assert_eq!(overlaps.begin(0..1, &(4096..8192)), None, "a neighbour");
        assert_eq!(overlaps.begin(0..1, &(512..5000)), Some(512..5000));
        overlaps.end(0..1, &(4096..8192));
        overlaps.end(0..1, &(512..5000));
        assert_eq!(overlaps.begin(0..1, &(4000..8192)), Some(4000..4096));
        overlaps.end(0..1, &(0..4096));
        overlaps.end(0..1, &(4000..8192));
        assert_eq!(overlaps.begin(0..1, &(0..8192)), None);
    }

    #[test]
    fn a_change_of_many_regions_is_found_in_each() {
        let overlaps = Overlaps::default();
        let mib = |n: u64| (n << 20)..((n + 1) << 20);
        assert_eq!(overlaps.begin(3..103, &(3 << 20..103 << 20)), None);
        for n in [3, 50, 102] {
            assert_eq!(overlaps.begin(n..n + 1, &mib(n as u64)), Some(mib(n as u64)));
            overlaps.end(n..n + 1, &mib(n as u64));
        }
        assert_eq!(overlaps.begin(103..104, &mib(103)), None, "another one of a list");
        overlaps.end(3..103, &(3 << 20..103 << 20));
        assert_eq!(overlaps.begin(50..51, &mib(50)), None);
    }
}
