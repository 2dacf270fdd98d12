//! A bounded ring of pointers: many append, many take in batches, and each pointer stays in its
//! cell until the moment at which it is taken.
//!
//! An appender owns the tail for three instructions. An appender that finds it owned, or the ring
//! full, learns that at once and puts its item elsewhere. A taker *reserves* positions, which moves
//! one word, and then takes each cell by itself. So any thread can still take the items that a
//! taker has reserved and not taken yet: by name ([`Ring::take_this`]), by a scan ([`Ring::look`]),
//! or as a leftover ([`Ring::sweep`]). No thread ever waits for a preempted appender or taker.
//! `README.md` beside this file names the steps and argues them.
//!
//! Models: `tests/loom/ring.rs`.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};

use crossbeam_utils::CachePadded;

use crate::facade::atomic::{AtomicPtr, AtomicU64, Ordering, aside};
use crate::facade::fence::FencePolicy;
use crate::facade::{hint, spin};

/// Flag beside the tail's position: an appender fills cells from there on.
const BUSY: u64 = 1;
/// Flag beside a pointer: a thread looks at the item, and no other may take it.
const HELD: usize = 1;
/// Bytes of a cache line, and cells in one.
const LINE: usize = 64;
const CELLS: usize = LINE / size_of::<*mut ()>();
/// Interval of positions at which appenders check a `low` that stays behind for a lap.
const LOOKS: u64 = 64;

/// The ring. It holds plain pointers and accesses nothing that they point to: the taker of one owns
/// what its appender owned, and sees what the appender had written. Dropping it drops nothing.
///
/// Every method may be called in any context and by any thread. None blocks, except as
/// [`Ring::outwait`] and [`Ring::take`] say.
pub struct Ring<T, F> {
    /// Words on a cache line that appenders write.
    appenders: CachePadded<Appenders>,
    /// Words on a cache line that appenders don't touch.
    takers: CachePadded<Takers>,
    /// A: null, an item, or an item and `HELD`.
    cells: Box<[AtomicPtr<T>]>,
    /// I: the index in `cells` of the cell of position 0, which begins a cache line.
    first: usize,
    /// I: the number of cells of the ring, minus one.
    mask: usize,
    fence: PhantomData<F>,
}

struct Appenders {
    /// A: the position that the next item gets, times two, and `BUSY`.
    tail: AtomicU64,
    /// A: positions below it are less than a lap before the head, as it was last seen. Any value
    /// that was written once stays true, so models don't try its orders.
    limit: aside::AtomicU64,
    /// A: positions below it are less than a lap before `low`, as it was last seen: their cells are
    /// empty, and a reader sees that: Release and Acquire.
    sure: AtomicU64,
}

struct Takers {
    /// A: positions that were reserved so far. Never beyond the tail's position.
    head: AtomicU64,
    /// A: all cells of positions below it are empty for good. A value that was written here once
    /// stays true, so it is written by plain stores, and may go back. Release and Acquire towards
    /// Begin, which fills a cell on its word.
    low: AtomicU64,
}

impl<T, F: FencePolicy> Ring<T, F> {
    /// Creates an empty ring of `capacity` cells. Its memory is zeroed by the allocator, so that
    /// pages which are never used cost nothing.
    ///
    /// # Panics
    /// If `capacity` is no power of two.
    pub fn new(capacity: usize) -> Ring<T, F> {
        const { assert!(align_of::<T>() > HELD, "the lowest bit of a pointer has to be free") };
        assert!(capacity.is_power_of_two(), "a ring has a power of two of cells, not {capacity}");
        let cells: Box<[AtomicPtr<T>]> = if hint::IN_MODEL {
            (0..capacity).map(|_| AtomicPtr::new(ptr::null_mut())).collect()
        } else {
            let zeros: Box<[usize]> = vec![0; capacity + CELLS - 1].into_boxed_slice();
            // SAFETY: outside of models an `AtomicPtr` has size and alignment of a pointer, and so
            // of a `usize`; a null pointer to a sized type is all zeros.
            unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [AtomicPtr<T>]) }
        };
        let first = if hint::IN_MODEL { 0 } else { cells.as_ptr().align_offset(LINE) };
        Ring {
            appenders: CachePadded::new(Appenders {
                tail: AtomicU64::new(0),
                limit: aside::AtomicU64::new(capacity as u64),
                sure: AtomicU64::new(capacity as u64),
            }),
            takers: CachePadded::new(Takers { head: AtomicU64::new(0), low: AtomicU64::new(0) }),
            // If an allocator can't say where a line begins, that only costs speed.
            first: if first < CELLS { first } else { 0 },
            cells,
            mask: capacity - 1,
            fence: PhantomData,
        }
    }

    /// Returns the maximum number of items.
    pub fn capacity(&self) -> usize {
        self.mask + 1
    }

    #[inline]
    fn cell(&self, at: u64) -> &AtomicPtr<T> {
        &self.cells[self.first + (at as usize & self.mask)]
    }

    /// Takes the tail for an append (Begin). `None`: another appender has it or was faster, or the
    /// ring is full. Then put the item elsewhere and don't wait. It is one locked operation, and
    /// orders like a full fence: a protocol with sleepers does its Check (is any thread asleep?)
    /// between this and [`Append::fill`]. That is enough since a worker doesn't park while
    /// [`waits`](Ring::waits), which is true while the tail is taken.
    ///
    /// Between this and the end of the returned [`Append`] there is no user code, no system call
    /// and no wait.
    #[inline]
    pub fn begin(&self) -> Option<Append<'_, T, F>> {
        // Takers read it. It arrives for the exchange meanwhile.
        hint::prefetch_to_write(&raw const self.appenders.tail);
        // Acquire pairs with Publish: the check of the cell sees what earlier appenders filled it
        // with, and this appender's Publish covers what they have filled, too.
        let tail = self.appenders.tail.load(Ordering::Acquire);
        let next = tail >> 1;
        if tail & BUSY != 0 || !self.has_room(next) {
            return None;
        }
        // SeqCst pairs with the sleeper's read-modify-write of its own word.
        let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
        self.appenders.tail.compare_exchange(tail, tail | BUSY, success, failure).ok()?;
        F::implied(); // pairs with the fence of a worker that goes to sleep
        Some(Append { ring: self, next, own_thread: PhantomData })
    }

    /// Returns true if there is an item that no taker has reserved, or an append is in progress. A
    /// worker that parks on the answer first publishes that it sleeps, by a `SeqCst`
    /// read-modify-write and [`FencePolicy::implied`], and **doesn't park while this is true**. It
    /// looks for work again, and if there is none, lets the appender end ([`Ring::outwait`]).
    /// [`Ring::left`] finds items that were reserved and not taken. Call it afterwards, since items
    /// move that way.
    #[inline]
    pub fn waits(&self) -> bool {
        // The head never passes the tail: if they are equal, everything appended until then was
        // reserved. A later appender sees that the caller sleeps.
        let head = self.takers.head.load(Ordering::SeqCst);
        self.appenders.tail.load(Ordering::SeqCst) != head << 1
    }

    /// Returns true if this position's cell is empty, and was reserved in the lap before. If the
    /// cell is a hole that no taker has reserved, the item would come before older ones.
    #[inline]
    fn has_room(&self, at: u64) -> bool {
        // A worker that waits for the item polls its cell: a read from here would only move that
        // line to and fro.
        if self.is_surely_empty(at) {
            return true;
        }
        let limit = &self.appenders.limit;
        if at >= limit.load(Ordering::Relaxed) {
            // Once a lap, if takers keep up. An old head only means fewer positions.
            let now = self.takers.head.load(Ordering::Relaxed) + self.capacity() as u64;
            limit.store(now, Ordering::Relaxed);
            if at >= now {
                return false;
            }
        }
        self.cell(at).load(Ordering::Relaxed).is_null()
    }

    /// Returns true if this position's cell is certainly empty, without reading it.
    #[inline]
    fn is_surely_empty(&self, at: u64) -> bool {
        let sure = &self.appenders.sure;
        if at < sure.load(Ordering::Acquire) {
            return true;
        }
        if at & self.mask as u64 & (LOOKS - 1) != 0 {
            return false;
        }
        // Once a lap, if `low` keeps up. Below it each cell was emptied, and `low` is never beyond
        // the head.
        let now = self.takers.low.load(Ordering::Acquire) + self.capacity() as u64;
        sure.store(now, Ordering::Release);
        at < now
    }

    /// Returns true if an append is in progress (a moment ago).
    #[inline]
    pub fn is_busy(&self) -> bool {
        // Acquire pairs with Publish.
        self.appenders.tail.load(Ordering::Acquire) & BUSY != 0
    }

    /// Waits until no append is in progress (a moment ago). It spins, yields, then sleeps for 50 us
    /// each time, as [`Spin`](spin::Spin) does: an appender has three stores left, but may have
    /// been preempted.
    #[inline]
    pub fn outwait(&self) {
        let mut tries = 0;
        while self.is_busy() {
            spin::outwait(tries);
            tries = tries.saturating_add(1);
        }
    }

    /// Returns the number of positions that no taker has reserved (a moment ago). Some may be empty
    /// already.
    #[inline]
    pub fn len(&self) -> u64 {
        let head = self.takers.head.load(Ordering::Relaxed);
        (self.appenders.tail.load(Ordering::Relaxed) >> 1).saturating_sub(head)
    }

    /// Returns true if [`len`](Ring::len) is 0: a hint, on which no thread may park.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the oldest unreserved position is filled, as a hint: for a thread that polls
    /// until something comes. It doesn't read the appenders' tail, and may miss items behind a hole
    /// that isn't the oldest.
    #[inline]
    pub fn has_next(&self) -> bool {
        let head = self.takers.head.load(Ordering::Relaxed);
        !self.cell(head).load(Ordering::Relaxed).is_null()
    }

    /// Returns the number of positions that were reserved so far. While it stands still, no taker
    /// has come by.
    #[inline]
    pub fn reserved(&self) -> u64 {
        self.takers.head.load(Ordering::Relaxed)
    }

    /// Reserves the oldest positions for the caller (Reserve). `most` gets their number and returns
    /// how many to reserve (at least 1; it isn't called if there are none). From a line of cells
    /// (8) on, a batch is cut so that the next begins a line. The items are being prefetched into
    /// the cache when it returns; each is still to be [taken](Ring::take).
    ///
    /// # Errors
    /// Another taker was faster. Nothing was reserved.
    #[inline]
    pub fn reserve(&self, most: impl FnOnce(u64) -> u64) -> Result<Reserved, TakerConflict> {
        // The order isn't essential: an old tail only means fewer positions.
        let first = self.takers.head.load(Ordering::Relaxed);
        // Acquire pairs with Publish: the cells below are filled.
        let there = (self.appenders.tail.load(Ordering::Acquire) >> 1).saturating_sub(first);
        if there == 0 {
            return Ok(Reserved::default());
        }
        let most = most(there).min(there);
        let line = CELLS as u64;
        let end = first + if most < line { most } else { most - (first + most) % line };
        // Release pairs with the Acquire of the look for leftovers: it sees cells below the head as
        // filled, too.
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        // The cell is emptied soon.
        hint::prefetch_to_write(self.cell(first));
        if self.takers.head.compare_exchange(first, end, success, failure).is_err() {
            return Err(TakerConflict);
        }
        if !hint::IN_MODEL {
            for at in first..end {
                let item = self.cell(at).load(Ordering::Relaxed);
                hint::prefetch_to_write(item);
                // The target of the call may be on the next line.
                hint::prefetch(item.wrapping_byte_add(LINE));
            }
        }
        Ok(Reserved { first, next: first, end })
    }

    /// Takes the item at this position, which the caller has reserved (Take). `None`: the position
    /// is a hole, since another thread has taken the item by name, or as a leftover. If a taker is
    /// so late that the cell is used again, it gets the item that is there now, which no other
    /// thread has. While another thread looks at the item, this waits as [`outwait`](Ring::outwait)
    /// does.
    #[inline]
    pub fn take(&self, at: u64) -> Option<NonNull<T>> {
        let cell = self.cell(at);
        let mut there = cell.load(Ordering::Relaxed);
        let mut tries = 0;
        loop {
            let item = NonNull::new(there)?;
            if item.addr().get() & HELD != 0 {
                spin::outwait(tries);
                tries = tries.saturating_add(1);
                there = cell.load(Ordering::Relaxed);
                continue;
            }
            // Acquire pairs with Fill: the item is seen as it was appended. It also pairs with
            // LetBe: the reads of a look at it are over.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            match cell.compare_exchange(there, ptr::null_mut(), success, failure) {
                Ok(_) => return Some(item),
                Err(now) => there = now,
            }
        }
    }

    /// Takes this very item out of this cell, whose number [`Append::cell`] returned (Find). False:
    /// it isn't there, since another thread has taken it, or its appender hasn't filled the cell
    /// yet. Waits like [`take`](Ring::take).
    ///
    /// The caller ensures that the item can't be appended anew meanwhile, which would be another
    /// instance.
    pub fn take_this(&self, cell: u32, item: NonNull<T>) -> bool {
        let cell_number = u64::from(cell);
        let cell = self.cell(cell_number);
        let held = item.as_ptr().map_addr(|address| address | HELD);
        let mut tries = 0;
        loop {
            // Acquire as in `take`.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            match cell.compare_exchange(item.as_ptr(), ptr::null_mut(), success, failure) {
                Ok(_) => {
                    self.skips_hole(cell_number);
                    return true;
                }
                Err(there) if there == held => spin::outwait(tries),
                Err(_) => return false,
            }
            tries = tries.saturating_add(1);
        }
    }

    /// Reserves the oldest position, if it is the hole in this cell, so that
    /// [`has_next`](Ring::has_next) sees what follows.
    fn skips_hole(&self, cell: u64) {
        let head = self.takers.head.load(Ordering::Relaxed);
        // Acquire pairs with Publish: the position had its item.
        let there = head < self.appenders.tail.load(Ordering::Acquire) >> 1;
        // Until the head is beyond it, no appender fills the cell again.
        if there
            && head & self.mask as u64 == cell
            && self.cell(head).load(Ordering::Relaxed).is_null()
        {
            // Release as in Reserve. If it fails, another taker has reserved it.
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            let _ = self.takers.head.compare_exchange(head, head + 1, success, failure);
        }
    }

    /// Takes the oldest leftover, an item that another taker has reserved and not taken (Sweep).
    /// Waits like [`take`](Ring::take).
    pub fn sweep(&self) -> Option<NonNull<T>> {
        let among = self.leftovers();
        let (mut empty, mut found) = (among.end, None);
        for at in among {
            found = self.take(at);
            if found.is_some() {
                empty = at + 1;
                break;
            }
        }
        self.is_empty_below(empty);
        found
    }

    /// Returns the position of the oldest leftover, which a [`sweep`](Ring::sweep) would find (a
    /// moment ago). It reads one line, unless a batch is in progress, was left, or ended before an
    /// older one; then it reads each cell once.
    ///
    /// A worker may park on the answer: it covers any item that was reserved before the caller
    /// found that nothing [waits](Ring::waits), and that wasn't taken since.
    pub fn left(&self) -> Option<u64> {
        let among = self.leftovers();
        let is_full = |at: &u64| !self.cell(*at).load(Ordering::Relaxed).is_null();
        let left = among.clone().find(is_full);
        self.is_empty_below(left.unwrap_or(among.end));
        left
    }

    /// Reserves for the caller all positions that others have reserved, from that of the oldest
    /// leftover on (Adopt). Their takers may still be active: each item is taken by one of them.
    pub fn adopt(&self) -> Option<Reserved> {
        let first = self.left()?;
        // Acquire as in `leftovers`.
        Some(Reserved { first, next: first, end: self.takers.head.load(Ordering::Acquire) })
    }

    /// Records that all cells of positions below this one are empty for good.
    #[inline]
    fn is_empty_below(&self, to: u64) {
        if self.takers.low.load(Ordering::Relaxed) < to {
            self.takers.low.store(to, Ordering::Release);
        }
    }

    /// Returns the positions among which leftovers may be.
    #[inline]
    fn leftovers(&self) -> Range<u64> {
        let low = self.takers.low.load(Ordering::Relaxed);
        // Acquire pairs with Reserve: a cell below that is seen empty was emptied.
        let head = self.takers.head.load(Ordering::Acquire);
        if low < head { self.not_gone_round(low)..head } else { head..head }
    }

    /// Returns the positions from here on, except those whose cells have been reused since.
    #[inline]
    fn not_gone_round(&self, from: u64) -> u64 {
        // An old tail only means more positions.
        let tail = self.appenders.tail.load(Ordering::Relaxed) >> 1;
        from.max(tail.saturating_sub(self.capacity() as u64))
    }

    /// Records that all positions of this batch are empty: the caller has taken each, or found it
    /// to be a hole. Call this at a batch's end. The positions of an abandoned batch stay where
    /// leftovers are looked for.
    #[inline]
    pub fn over(&self, of: &Reserved) {
        let low = &self.takers.low;
        if of.first < of.next && low.load(Ordering::Relaxed) == of.first {
            low.store(of.next, Ordering::Release);
        }
    }

    /// Stores an item into a cell (Fill).
    #[inline]
    pub(crate) fn fill(&self, at: u64, item: NonNull<T>) {
        // Release pairs with the Acquire of Take, Find and Hold.
        self.cell(at).store(item.as_ptr(), Ordering::Release);
    }

    /// Gives the tail back, which is at this position from now on (Publish).
    #[inline]
    fn publish(&self, next: u64) {
        // Release pairs with the Acquire of Reserve, and of the next Begin.
        self.appenders.tail.store(next << 1, Ordering::Release);
    }
}

impl<T, F: FencePolicy> fmt::Debug for Ring<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, left) = (self.len(), self.left().is_some());
        f.debug_struct("Ring").field("waiting", &waiting).field("left", &left).finish()
    }
}

/// The tail of a [`Ring`], taken for an append. Dropping it publishes what was filled so far, and
/// gives the tail back. Until then all other appenders are turned away, and no worker parks: fill
/// it at once.
#[must_use = "nobody else can append meanwhile"]
pub struct Append<'a, T, F: FencePolicy> {
    ring: &'a Ring<T, F>,
    /// The position of the cell that is filled next. The cell is empty.
    pub(crate) next: u64,
    /// Marker: the append is ended by the thread that began it.
    own_thread: PhantomData<*mut ()>,
}

impl<T, F: FencePolicy> Append<'_, T, F> {
    /// Returns the number of the cell that is filled next, below the capacity. Cells are numbered
    /// consecutively.
    #[inline]
    pub fn cell(&self) -> u32 {
        (self.next as usize & self.ring.mask) as u32
    }

    /// Returns true if the item that was appended before is gone, as a hint: it reads the
    /// neighbouring cell.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.ring.cell(self.next.wrapping_sub(1)).load(Ordering::Relaxed).is_null()
    }

    /// Appends this item (Fill and Publish).
    #[inline]
    pub fn fill(mut self, item: NonNull<T>) {
        self.ring.fill(self.next, item);
        self.next += 1;
    }

    /// Appends this item, and keeps the tail for another one behind it. All are published together,
    /// by the last [`fill`](Append::fill) or by the drop. `None`: the ring is full behind this one,
    /// and it is published.
    #[inline]
    pub fn put(mut self, item: NonNull<T>) -> Option<Self> {
        self.ring.fill(self.next, item);
        self.next += 1;
        if self.ring.has_room(self.next) { Some(self) } else { None }
    }
}

impl<T, F: FencePolicy> Drop for Append<'_, T, F> {
    #[inline]
    fn drop(&mut self) {
        self.ring.publish(self.next);
    }
}

impl<T, F: FencePolicy> fmt::Debug for Append<'_, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Append").field("next", &self.next).finish()
    }
}

/// Positions of a [`Ring`] that one taker may [take](Ring::take): an iterator, oldest first. Plain
/// numbers: dropping it leaves the items in their cells, as leftovers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    first: u64,
    next: u64,
    end: u64,
}

impl Iterator for Reserved {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        let at = self.next;
        if at == self.end {
            return None;
        }
        self.next += 1;
        Some(at)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Reserved {}

/// Another taker reserved positions at the same moment, and was faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakerConflict;

/// Verdict on an item that a scan showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// The item stays, and the scan continues.
    Next,
    /// The item is taken, and the scan ends.
    Take,
    /// The item stays, and the scan ends.
    Stop,
}

impl<T, F: FencePolicy> Ring<T, F> {
    /// Shows `see` each item, oldest first, reserved or not, and returns the one for which it
    /// returns [`Scan::Take`]. While `see` has an item no other thread takes it, so it may be read
    /// there and isn't freed; takers of just that one wait. So `see` is short, calls no user code
    /// and takes nothing from this ring. An item that comes or goes meanwhile may be shown, or not,
    /// or twice. If another thread looks at the same item, this waits as [`outwait`](Ring::outwait)
    /// does.
    pub fn look(&self, mut see: impl FnMut(NonNull<T>) -> Scan) -> Option<NonNull<T>> {
        // Relaxed: below any value that was ever written here, all cells are empty.
        let from = self.not_gone_round(self.takers.low.load(Ordering::Relaxed));
        // Acquire pairs with Publish: the cells below are filled.
        let to = self.appenders.tail.load(Ordering::Acquire) >> 1;
        for at in from..to {
            let Some(held) = self.hold(at) else { continue };
            match see(held.item) {
                Scan::Next => {}
                Scan::Take => return Some(held.take()),
                Scan::Stop => return None,
            }
        }
        None
    }

    /// Keeps other threads from taking the item at this position (Hold).
    fn hold(&self, at: u64) -> Option<HeldItem<'_, T, F>> {
        let mut tries = 0;
        loop {
            let there = self.cell(at).load(Ordering::Relaxed);
            let item = NonNull::new(there)?;
            let held = there.map_addr(|address| address | HELD);
            // Acquire pairs with Fill: the item is seen as it was appended.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            if there == held {
                spin::outwait(tries);
            } else if self.cell(at).compare_exchange(there, held, success, failure).is_ok() {
                return Some(HeldItem { ring: self, at, item });
            }
            tries = tries.saturating_add(1);
        }
    }
}

/// An item that a thread looks at.
struct HeldItem<'a, T, F: FencePolicy> {
    ring: &'a Ring<T, F>,
    at: u64,
    item: NonNull<T>,
}

impl<T, F: FencePolicy> HeldItem<'_, T, F> {
    /// Takes the held item (TakeHeld).
    fn take(self) -> NonNull<T> {
        let item = self.item;
        // A store: while the item is held, no other thread writes the cell.
        self.ring.cell(self.at).store(ptr::null_mut(), Ordering::Relaxed);
        std::mem::forget(self);
        item
    }
}

impl<T, F: FencePolicy> Drop for HeldItem<'_, T, F> {
    /// Releases the item (LetBe), even if the look panics.
    fn drop(&mut self) {
        // Release pairs with the Acquire of Take and Find: they free the item after it was read. A
        // store, as above.
        self.ring.cell(self.at).store(self.item.as_ptr(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
