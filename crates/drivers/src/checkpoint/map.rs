//! The epochs of a device's blocks, and the groups that are open for more. `README.md` beside this
//! file names the steps.

use std::ops::Range;

use corewise_sync::atomic::{AtomicU16, AtomicU32, Ordering};

use super::format::{GROUP, GROUPS, PAGE_BLOCKS};

/// Number of threads that mark blocks of a group.
const MARKERS: u32 = 0xFFFF;
/// Flag: the record on disk counts all blocks of the group as changed.
const OPEN: u32 = 1 << 16;
/// Flag: a block was marked since the keeper's last look.
const RECENT: u32 = 1 << 17;

/// The epochs of all blocks of a device.
pub struct ChangeMap {
    /// A: the epoch of each block's last change; it never goes down. Release: the mark comes after
    /// the open group, and before the change is sent.
    epochs: Box<[AtomicU16]>,
    /// A: the word of each group; the orderings are argued where it is changed.
    groups: Box<[AtomicU32]>,
    shift: u32,
}

impl ChangeMap {
    /// Creates the map of a device of `size` bytes in blocks of `1 << shift`: nothing has changed,
    /// and all groups are closed.
    pub fn new(size: u64, shift: u32) -> Self {
        let blocks = size.div_ceil(1 << shift) as usize;
        Self {
            epochs: (0..blocks).map(|_| AtomicU16::new(0)).collect(),
            groups: (0..blocks.div_ceil(GROUP)).map(|_| AtomicU32::new(0)).collect(),
            shift,
        }
    }

    /// Returns the number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.epochs.len()
    }

    /// Returns the number of pages that have the blocks' epochs.
    pub(super) fn pages(&self) -> usize {
        self.epochs.len().div_ceil(PAGE_BLOCKS)
    }

    /// Returns the blocks that a range of bytes touches.
    pub(super) fn of(&self, offset: u64, len: u64) -> Range<usize> {
        let end = (offset + len).div_ceil(1 << self.shift);
        (offset >> self.shift) as usize..end as usize
    }

    /// Returns the bytes of these blocks on a device of `size` bytes.
    pub(super) fn bytes(&self, blocks: Range<usize>, size: u64) -> Range<u64> {
        let at = |n: usize| ((n as u64) << self.shift).min(size);
        at(blocks.start)..at(blocks.end)
    }

    /// Returns true if block `n` changed in this epoch or later. Acquire pairs with the Release of
    /// `mark`: the record on disk has the block, and its old content was copied.
    pub(super) fn has_changed(&self, n: usize, epoch: u16) -> bool {
        self.epochs[n].load(Ordering::Acquire) >= epoch
    }

    /// Begins a change of these blocks in this epoch. False if it has to wait until the keeper has
    /// opened their groups, or, if `copying`, copied them. Lock-free.
    #[must_use = "false obliges the caller to park the change"]
    pub fn enter(&self, blocks: Range<usize>, epoch: u16, copying: bool) -> bool {
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min((at / GROUP + 1) * GROUP);
            let is_new = (at..end).any(|n| !self.has_changed(n, epoch));
            if is_new && (copying || !self.enter_group(at..end, epoch)) {
                return false;
            }
            at = end;
        }
        true
    }

    /// Marks blocks of one group, if it is open.
    fn enter_group(&self, blocks: Range<usize>, epoch: u16) -> bool {
        let word = &self.groups[blocks.start / GROUP];
        // Acquire pairs with the Release of `open`: the group is open on disk.
        let entered = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |word| {
            let may = word & OPEN != 0 && word & MARKERS != MARKERS;
            may.then_some((word | RECENT) + 1)
        });
        if entered.is_err() {
            return false;
        }
        self.mark(blocks, epoch);
        // Release pairs with the Acquire of `close`: the keeper then writes the mark down.
        word.fetch_sub(1, Ordering::Release);
        true
    }

    /// Marks blocks as changed in this epoch. Their groups are open, and stay so meanwhile.
    pub(super) fn mark(&self, blocks: Range<usize>, epoch: u16) {
        for n in blocks {
            self.epochs[n].fetch_max(epoch, Ordering::Release);
        }
    }

    /// Opens group `n`, which is open on disk.
    pub fn open(&self, n: usize) {
        self.groups[n].fetch_or(OPEN | RECENT, Ordering::Release);
    }

    /// Returns true if group `n` is open. The keeper alone asks, and it alone opens and closes.
    pub(super) fn is_open(&self, n: usize) -> bool {
        self.groups[n].load(Ordering::Relaxed) & OPEN != 0
    }

    /// Closes group `n`, if no block was marked there since the last call, and no thread marks one.
    /// The numbers of its blocks then have all changes that entered.
    pub fn close(&self, n: usize) -> bool {
        let word = &self.groups[n];
        // The whole word is compared: RECENT or a marker keeps the group open.
        let closed = word.compare_exchange(OPEN, 0, Ordering::Acquire, Ordering::Relaxed);
        if closed.is_err() {
            word.fetch_and(!RECENT, Ordering::Relaxed);
        }
        closed.is_ok()
    }

    /// Returns the epochs of page `n`.
    pub fn page(&self, n: usize) -> Vec<u16> {
        let end = self.epochs.len().min((n + 1) * PAGE_BLOCKS);
        (n * PAGE_BLOCKS..end).map(|n| self.epochs[n].load(Ordering::Acquire)).collect()
    }

    /// Returns the newest epoch of a change.
    pub(super) fn newest(&self) -> u16 {
        self.epochs.iter().map(|epoch| epoch.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Returns the groups of page `n`.
    pub(super) fn groups(&self, n: usize) -> Range<usize> {
        n * GROUPS..self.groups.len().min((n + 1) * GROUPS)
    }

    /// Returns the stretch of blocks from `from` up to `end` that have all changed since `epoch`,
    /// or all not: its end, and which of the two.
    pub(super) fn stretch(&self, from: usize, end: usize, epoch: u16) -> (usize, bool) {
        let changed = self.has_changed(from, epoch);
        let other = (from + 1..end).find(|&n| self.has_changed(n, epoch) != changed);
        (other.unwrap_or(end), changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_enters_where_all_its_groups_are_open() {
        let map = ChangeMap::new(40 << 12, 12);
        assert_eq!((map.blocks(), map.pages(), map.groups(0)), (40, 1, 0..3));
        assert!(!map.enter(0..1, 3, false));
        map.open(0);
        assert!(map.enter(0..16, 3, false));
        assert!(!map.enter(15..17, 3, false));
        assert_eq!(map.stretch(0, 40, 3), (16, true));
        assert_eq!(map.stretch(16, 40, 3), (40, false));
        assert_eq!(map.stretch(0, 40, 4), (40, false), "not in the next epoch");
    }

    #[test]
    fn a_block_that_has_the_epoch_needs_no_open_group_and_no_copy() {
        let map = ChangeMap::new(40 << 12, 12);
        map.open(1);
        assert!(!map.enter(20..22, 3, true), "its old content isn't copied yet");
        assert!(map.enter(20..22, 3, false));
        assert!(!map.close(1) && map.close(1), "a group is spared once");
        assert!(map.enter(20..22, 3, true));
        assert!(!map.enter(20..23, 3, false) && !map.enter(20..22, 4, false));
    }

    #[test]
    fn a_range_touches_the_blocks_that_its_bytes_lie_in() {
        let map = ChangeMap::new((4 << 12) + 1, 12);
        assert_eq!((map.blocks(), map.of(4095, 2), map.of(8192, 8193)), (5, 0..2, 2..5));
        assert_eq!(map.bytes(3..5, (4 << 12) + 1), 12288..16385);
    }
}
