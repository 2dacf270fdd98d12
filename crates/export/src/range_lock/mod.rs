//! Range locks of a device, for changes that cover a block in part. Such a change has to read the
//! block first, and must be alone among all other changes of it.
//!
//! While no connection makes such a change, each only counts its changes in flight, on a word of
//! its own. The first such change makes all connections enter theirs in a [`Table`] instead, where
//! changes of the same block wait for each other.
//!
//! Steps, races and proof: `README.md` beside this file. Model: `tests/loom/range_lock.rs`.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::task::Waker;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// Counted changes, in the lowest bits.
const ONE: u64 = 1;
/// New changes are entered in the table. Set and cleared by the holder of the lock.
const LISTED: u64 = 1 << 63;

/// The changes of one connection that are in flight and not in the table.
#[derive(Debug)]
struct CountedChanges {
    /// A: the number of changes, and `LISTED`. Changed by read-modify-writes only, and not added to
    /// under `LISTED`.
    word: AtomicU64,
}

/// A connection at a device.
#[derive(Debug)]
struct ConnectionEntry {
    counted: Arc<CountedChanges>,
    /// True if it changes blocks in part.
    unaligned: bool,
}

/// The changes of one device, whose requests are `T`s.
#[derive(Debug)]
pub struct RangeLocks<T> {
    /// L: is the lock; guards everything in `RangeLocksState`. A leaf: inside it threads are woken,
    /// and nothing else is locked.
    state: Mutex<RangeLocksState<T>>,
}

#[derive(Debug)]
struct RangeLocksState<T> {
    connections: Vec<ConnectionEntry>,
    /// Readers that wait for the last counted change.
    waiting: Vec<Waker>,
    table: Table<T>,
}

impl<T> Default for RangeLocks<T> {
    fn default() -> Self {
        let (connections, waiting, table) = (Vec::new(), Vec::new(), Table::default());
        RangeLocks { state: Mutex::new(RangeLocksState { connections, waiting, table }) }
    }
}

impl<T> RangeLocksState<T> {
    fn has_unaligned(&self) -> bool {
        self.connections.iter().any(|connection| connection.unaligned)
    }
}

impl<T> RangeLocks<T> {
    /// Enters a change that its connection doesn't count. Returns its id, and the change itself if
    /// it may begin. Otherwise a later [`RangeLocks::leave`] returns it.
    pub fn enter(&self, blocks: Blocks, change: T) -> (u64, Option<T>) {
        self.state.lock().table.enter(blocks, change)
    }

    /// Removes a change that is over. Returns the changes that may begin now, which the caller
    /// sends to the device. Any context; blocks for a few instructions at most.
    #[must_use = "they are nowhere else"]
    pub fn leave(&self, id: u64) -> Vec<(u64, T)> {
        self.state.lock().table.leave(id)
    }

    /// Returns the number of changes in the table.
    pub fn listed(&self) -> usize {
        self.state.lock().table.entries.len()
    }
}

/// A connection among the others that change the device.
#[derive(Debug)]
pub struct Changes<T> {
    locks: Arc<RangeLocks<T>>,
    counted: Arc<CountedChanges>,
    waker: Waker,
}

impl<T> Changes<T> {
    /// Registers a connection that changes nothing yet. The waker wakes its reader.
    pub fn new(locks: &Arc<RangeLocks<T>>, waker: Waker) -> Changes<T> {
        let mut state = locks.state.lock();
        let word = if state.has_unaligned() { LISTED } else { 0 };
        let counted = Arc::new(CountedChanges { word: AtomicU64::new(word) });
        state.connections.push(ConnectionEntry { counted: Arc::clone(&counted), unaligned: false });
        drop(state);
        Changes { locks: Arc::clone(locks), counted, waker }
    }

    /// Begins a change of whole blocks. Returns true if it is counted, and [ends](Changes::end) so;
    /// otherwise it has to be entered in the table. Reader only.
    pub fn begin(&self) -> bool {
        let add = |word| (word & LISTED == 0).then_some(word + ONE);
        self.counted.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
    }

    /// Ends a counted change. Any context; blocks for a few instructions at most.
    pub fn end(&self) {
        let was = self.counted.word.fetch_sub(ONE, Ordering::AcqRel);
        debug_assert!(was & !LISTED != 0, "more ends than began");
        if was == LISTED | ONE {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.locks.state.lock().waiting.drain(..).for_each(Waker::wake);
    }

    /// Makes all connections enter new changes in the table while this connection exists. Called
    /// before its first change of a part of a block, which may begin once [`Changes::are_listed`]
    /// returns true. Reader only.
    pub fn list(&self) {
        let mut state = self.locks.state.lock();
        for connection in &mut state.connections {
            connection.unaligned |= Arc::ptr_eq(&connection.counted, &self.counted);
            connection.counted.word.fetch_or(LISTED, Ordering::AcqRel);
        }
    }

    /// Returns true if all changes in flight are in the table. Otherwise the reader is woken when
    /// that may be so. Reader only.
    pub fn are_listed(&self) -> bool {
        let mut state = self.locks.state.lock();
        let is_listed =
            |at: &ConnectionEntry| at.counted.word.load(Ordering::Acquire) & !LISTED == 0;
        let all = state.connections.iter().all(is_listed);
        if !all {
            state.waiting.push(self.waker.clone());
        }
        all
    }
}

impl<T> Drop for Changes<T> {
    /// Removes the connection, which has nothing in the device any more.
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        state.connections.retain(|other| !Arc::ptr_eq(&other.counted, &self.counted));
        if !state.has_unaligned() {
            for other in &state.connections {
                other.counted.word.fetch_and(!LISTED, Ordering::AcqRel);
            }
        }
    }
}

/// The blocks that a change touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Numbers of the blocks.
    pub range: RangeInclusive<u64>,
    /// True if it covers its block in part: no other change of that may run meanwhile.
    pub exclusive: bool,
}

impl Blocks {
    fn is_compatible(&self, other: &Blocks) -> bool {
        let apart =
            self.range.end() < other.range.start() || other.range.end() < self.range.start();
        apart || !(self.exclusive || other.exclusive)
    }
}

#[derive(Debug)]
struct ListedChange<T> {
    id: u64,
    blocks: Blocks,
    /// The change, if it waits.
    waiting: Option<T>,
}

/// The changes that are under way or wait, in the order in which they came.
#[derive(Debug)]
pub struct Table<T> {
    entries: Vec<ListedChange<T>>,
    last: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: Vec::new(), last: 0 }
    }
}

impl<T> Table<T> {
    /// Enters a change. Returns its id, and the change itself if it may begin. Otherwise it waits
    /// for each earlier one that it can't run beside.
    pub fn enter(&mut self, blocks: Blocks, change: T) -> (u64, Option<T>) {
        self.last += 1;
        let free = self.entries.iter().all(|entry| entry.blocks.is_compatible(&blocks));
        let (waiting, begins) = if free { (None, Some(change)) } else { (Some(change), None) };
        self.entries.push(ListedChange { id: self.last, blocks, waiting });
        (self.last, begins)
    }

    /// Removes a change that is over. Returns the changes that may begin now, in order.
    pub fn leave(&mut self, id: u64) -> Vec<(u64, T)> {
        let mut begin = Vec::new();
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else { return begin };
        let gone = self.entries.remove(at);
        for n in at..self.entries.len() {
            let (earlier, rest) = self.entries.split_at_mut(n);
            let entry = &mut rest[0];
            let waited = entry.waiting.is_some() && !entry.blocks.is_compatible(&gone.blocks);
            if waited && earlier.iter().all(|earlier| earlier.blocks.is_compatible(&entry.blocks)) {
                begin.extend(entry.waiting.take().map(|change| (entry.id, change)));
            }
        }
        begin
    }
}

#[cfg(test)]
mod tests {
    use corewise_sync::Parker;

    use super::*;

    #[test]
    fn changes_are_counted_until_one_covers_a_block_in_part_and_again_when_its_client_has_left() {
        let locks = Arc::new(RangeLocks::<()>::default());
        let (one_parker, two_parker) = (Parker::new(), Parker::new());
        let one = Changes::new(&locks, one_parker.waker());
        let two = Changes::new(&locks, two_parker.waker());
        assert!(one.begin() && one.begin() && two.begin());
        two.list();
        assert!(!two.are_listed());
        assert!(!one.begin() && !two.begin(), "what begins now is listed");
        one.end();
        two.end();
        assert!(two_parker.try_park() && !two.are_listed());
        one.end();
        assert!(two_parker.try_park() && two.are_listed());
        let late = Changes::new(&locks, Parker::new().waker());
        assert!(!late.begin());
        one.list();
        assert!(one.are_listed());
        drop(two);
        assert!(!late.begin());
        drop(one);
        assert!(late.begin());
        late.end();
    }

    fn whole(range: RangeInclusive<u64>) -> Blocks {
        Blocks { range, exclusive: false }
    }

    fn part(block: u64) -> Blocks {
        Blocks { range: block..=block, exclusive: true }
    }

    #[test]
    fn changes_of_whole_blocks_bear_each_other_and_those_of_a_part_bear_nobody() {
        let mut table = Table::default();
        assert_eq!(table.enter(whole(0..=9), 'a').1, Some('a'));
        assert_eq!(table.enter(whole(5..=5), 'b').1, Some('b'));
        assert_eq!(table.enter(part(10), 'c').1, Some('c'));
        let (_, waits) = table.enter(part(5), 'd');
        assert_eq!(waits, None);
        assert_eq!(table.enter(whole(6..=6), 'e').1, Some('e'), "nothing of it is wanted");
        assert_eq!(table.leave(1), []);
        assert_eq!(table.leave(2), [(4, 'd')], "nobody else has its block");
        assert_eq!(table.enter(part(5), 'f').1, None);
        assert_eq!(table.enter(whole(5..=6), 'g').1, None, "not past the one that waits");
        assert_eq!(table.leave(4), [(6, 'f')]);
        assert_eq!(table.leave(6), [(7, 'g')]);
    }

    #[test]
    fn whatever_comes_and_goes_no_two_that_do_not_bear_each_other_are_under_way() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut below = |n: u64| rng.u64(..n);
        let mut table = Table::default();
        let mut under_way: Vec<(u64, Blocks)> = Vec::new();
        let mut ended = 0;
        for n in 0..20_000 {
            if below(2) == 0 && table.entries.len() < 30 {
                let first = below(12);
                let blocks =
                    if below(2) == 0 { part(first) } else { whole(first..=first + below(4)) };
                let (id, begins) = table.enter(blocks.clone(), blocks);
                under_way.extend(begins.map(|blocks| (id, blocks)));
            } else if !under_way.is_empty() {
                let (id, _) = under_way.swap_remove(below(under_way.len() as u64) as usize);
                under_way.extend(table.leave(id));
                ended += 1;
            }
            for (at, (_, one)) in under_way.iter().enumerate() {
                assert!(under_way[at + 1..].iter().all(|(_, two)| one.is_compatible(two)), "{n}");
            }
            assert_eq!(under_way.is_empty(), table.entries.is_empty(), "the first one never waits");
        }
        assert!(ended > 5_000);
    }
}
