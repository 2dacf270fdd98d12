//! A bounded ring of pointers: many append, many take in batches, and each pointer stays in its
//! cell until the moment at which it is taken.
//!
//! An appender owns the tail for three instructions; an appender that finds it owned, or the ring
//! full, is told so at once and puts its item elsewhere. A taker *reserves* positions, which moves
//! one word, and then takes each cell by itself. So everybody can still take the items that a taker
//! has reserved and not taken yet: by name ([`Ring::take_this`]), by a look ([`Ring::look`]), or as
//! a leftover ([`Ring::sweep`]). Nobody ever waits for a preempted appender or taker. `README.md`
//! beside this file names the steps and argues them.
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

/// Beside the tail's position: an appender fills cells from there on.
const BUSY: u64 = 1;
/// Beside a pointer: somebody looks at the item, and nobody may take it.
const HELD: usize = 1;
/// Bytes of a cache line, and cells in one.
const LINE: usize = 64;
const CELLS: usize = LINE / size_of::<*mut ()>();
/// Where `low` stays behind for a lap, appenders look at it once in so many positions.
const LOOKS: u64 = 64;

/// The ring. It holds plain pointers and touches nothing that they point to: the taker of one owns
/// what its appender owned, and sees what the appender had written. Dropping it drops nothing.
///
/// Every method may be called in any context and by any thread; none blocks, but for what
/// [`Ring::outwait`] and [`Ring::take`] say.
pub struct Ring<T, F> {
    /// On a line that appenders write.
    appenders: CachePadded<Appenders>,
    /// On a line that appenders don't touch.
    takers: CachePadded<Takers>,
    /// A: null, an item, or an item and `HELD`.
    cells: Box<[AtomicPtr<T>]>,
    /// I: the index in `cells` of the cell of position 0, which begins a cache line.
    first: usize,
    /// I: the number of cells that positions go round, less one.
    mask: usize,
    fence: PhantomData<F>,
}

struct Appenders {
    /// A: the position that the next item gets, times two, and `BUSY`.
    tail: AtomicU64,
    /// A: positions below it are less than a lap before the head, as it was seen last. Any value
    /// that was written once stays true, so models don't try its orders.
    limit: aside::AtomicU64,
    /// A: positions below it are less than a lap before `low`, as that was seen last: their cells
    /// are empty, and a reader sees that: Release and Acquire.
    sure: AtomicU64,
}

struct Takers {
    /// A: positions that were reserved so far. Never beyond the tail's.
    head: AtomicU64,
    /// A: all cells of positions below it are empty for good. A value that was written here once
    /// stays true, so it is written by plain stores, and may go back. Release and Acquire towards
    /// Begin, which fills a cell on its word.
    low: AtomicU64,
}

impl<T, F: FencePolicy> Ring<T, F> {
    /// An empty ring of so many cells. Its memory is zeroed by the allocator, so that pages which
    /// are never used cost nothing.
    ///
    /// # Panics
    /// Where `capacity` is no power of two.
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
            // An allocator that can't say where a line begins costs speed alone.
            first: if first < CELLS { first } else { 0 },
            cells,
            mask: capacity - 1,
            fence: PhantomData,
        }
    }

    /// How many items it has room for.
    pub fn capacity(&self) -> usize {
        self.mask + 1
    }

    #[inline]
    fn cell(&self, at: u64) -> &AtomicPtr<T> {
        &self.cells[self.first + (at as usize & self.mask)]
    }

    /// Begin: takes the tail, for an append. `None`: another appender has it, the ring is full, or
    /// another was faster; put the item elsewhere, don't wait. It is one locked operation, and
    /// orders like a full fence: a protocol with sleepers does its Check (does anybody sleep?)
    /// between this and [`Append::fill`]. That is enough since a worker doesn't park while
    /// [`waits`](Ring::waits), which the tail's being taken makes true.
    ///
    /// Between this and the end of what it returns there is no user code, no system call and no
    /// wait.
    #[inline]
    pub fn begin(&self) -> Option<Append<'_, T, F>> {
        // Takers read it. It comes for the exchange meanwhile.
        hint::prefetch_to_write(&raw const self.appenders.tail);
        // Acquire pairs with Publish: the look at the cell sees what earlier appenders filled it
        // with, and this appender's Publish says for them too what they have filled.
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

    /// Whether an item lies here that nobody has reserved, or an append is under way. A worker that
    /// parks on the answer publishes that it sleeps before, by a `SeqCst` read-modify-write and
    /// [`FencePolicy::implied`], and **doesn't park while it is true**: it looks for work again,
    /// and where there is none, lets the appender end ([`Ring::outwait`]). [`Ring::left`] tells of
    /// items that were reserved and not taken; it is to be asked afterwards, since that is the way
    /// that items go.
    #[inline]
    pub fn waits(&self) -> bool {
        // The head never passes the tail: where they are equal all was reserved that had been
        // appended until then. An appender that comes later sees that the caller sleeps.
        let head = self.takers.head.load(Ordering::SeqCst);
        self.appenders.tail.load(Ordering::SeqCst) != head << 1
    }

    /// Whether this position's cell is empty, and was reserved in the lap before: where it is a
    /// hole that nobody has reserved, the item would come before older ones.
    #[inline]
    fn has_room(&self, at: u64) -> bool {
        // A worker that waits for the item looks at its cell again and again: a look from here
        // would only move that line to and fro.
        if self.is_surely_empty(at) {
            return true;
        }
        let limit = &self.appenders.limit;
        if at >= limit.load(Ordering::Relaxed) {
            // Once a lap, where takers keep up. An old head only means fewer.
            let now = self.takers.head.load(Ordering::Relaxed) + self.capacity() as u64;
            limit.store(now, Ordering::Relaxed);
            if at >= now {
                return false;
            }
        }
        self.cell(at).load(Ordering::Relaxed).is_null()
    }

    /// Whether this position's cell is empty for sure, without a look at it.
    #[inline]
    fn is_surely_empty(&self, at: u64) -> bool {
        let sure = &self.appenders.sure;
        if at < sure.load(Ordering::Acquire) {
            return true;
        }
        if at & self.mask as u64 & (LOOKS - 1) != 0 {
            return false;
        }
        // Once a lap, where low keeps up. Below it each cell was emptied, and low is never beyond
        // the head.
        let now = self.takers.low.load(Ordering::Acquire) + self.capacity() as u64;
        sure.store(now, Ordering::Release);
        at < now
    }

    /// Whether an append is under way (a moment ago).
    #[inline]
    pub fn is_busy(&self) -> bool {
        // Acquire pairs with Publish.
        self.appenders.tail.load(Ordering::Acquire) & BUSY != 0
    }

    /// Waits until no append is under way (a moment ago). It spins, yields, then sleeps for 50 us
    /// each time, as [`Spin`](spin::Spin) does: an appender has three stores to go, but may have
    /// been preempted.
    #[inline]
    pub fn outwait(&self) {
        let mut tries = 0;
        while self.is_busy() {
            spin::outwait(tries);
            tries = tries.saturating_add(1);
        }
    }

    /// How many positions nobody has reserved (a moment ago). Some may be empty already.
    #[inline]
    pub fn len(&self) -> u64 {
        let head = self.takers.head.load(Ordering::Relaxed);
        (self.appenders.tail.load(Ordering::Relaxed) >> 1).saturating_sub(head)
    }

    /// Whether [`len`](Ring::len) is 0: a hint, nobody may park on it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the oldest position that nobody has reserved is filled, as a hint: for a thread that
    /// looks again and again until something comes. It leaves the appenders' tail alone, and may
    /// overlook what lies behind a hole that isn't the oldest.
    #[inline]
    pub fn has_next(&self) -> bool {
        let head = self.takers.head.load(Ordering::Relaxed);
        !self.cell(head).load(Ordering::Relaxed).is_null()
    }

    /// How many positions were reserved so far. Where it stands still nobody has come by.
    #[inline]
    pub fn reserved(&self) -> u64 {
        self.takers.head.load(Ordering::Relaxed)
    }

    /// Reserve: makes the oldest positions the caller's, as many as `most` says of how many there
    /// are (at least 1; not asked where there are none). From a line of cells (8) on, a batch is
    /// cut so that the next begins a line. The items are on their way into the cache when it
    /// returns; each is still to be [taken](Ring::take).
    ///
    /// # Errors
    /// Another taker was faster. Nothing was reserved.
    #[inline]
    pub fn reserve(&self, most: impl FnOnce(u64) -> u64) -> Result<Reserved, TakerConflict> {
        // In this order, though none is needed: an old tail only means fewer.
        let first = self.takers.head.load(Ordering::Relaxed);
        // Acquire pairs with Publish: the cells below are filled.
        let there = (self.appenders.tail.load(Ordering::Acquire) >> 1).saturating_sub(first);
        if there == 0 {
            return Ok(Reserved::default());
        }
        let most = most(there).min(there);
        let line = CELLS as u64;
        let end = first + if most < line { most } else { most - (first + most) % line };
        // Release pairs with the Acquire of the look for leftovers: cells below the head are filled
        // for it too.
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        // It is emptied soon.
        hint::prefetch_to_write(self.cell(first));
        if self.takers.head.compare_exchange(first, end, success, failure).is_err() {
            return Err(TakerConflict);
        }
        if !hint::IN_MODEL {
            for at in first..end {
                let item = self.cell(at).load(Ordering::Relaxed);
                hint::prefetch_to_write(item);
                // The target of the call may lie on the next line.
                hint::prefetch(item.wrapping_byte_add(LINE));
            }
        }
        Ok(Reserved { first, next: first, end })
    }

    /// Take: what lies at this position, which the caller has reserved. `None`: it is a hole, since
    /// another has taken it by name, or as a leftover. A taker that is so late that the cell is
    /// used again gets what lies there now, which nobody else has. Waits, as
    /// [`outwait`](Ring::outwait) does, while somebody looks at it.
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
            // Acquire pairs with Fill: the item is seen as it was appended. And with LetBe: the
            // reads of a look at it are over.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            match cell.compare_exchange(there, ptr::null_mut(), success, failure) {
                Ok(_) => return Some(item),
                Err(now) => there = now,
            }
        }
    }

    /// Find: takes this very item out of this cell, whose number [`Append::cell`] told. False: it
    /// isn't there, since another has taken it, or its appender hasn't filled the cell yet. Waits
    /// as [`take`](Ring::take) does.
    ///
    /// The caller sees to it that the item can't be appended anew meanwhile, which would be another
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

    /// Reserves the oldest position, if it is the hole in this cell: so
    /// [`has_next`](Ring::has_next) sees what lies behind.
    fn skips_hole(&self, cell: u64) {
        let head = self.takers.head.load(Ordering::Relaxed);
        // Acquire pairs with Publish: the position had its item.
        let there = head < self.appenders.tail.load(Ordering::Acquire) >> 1;
        // Until the head is beyond it nobody fills the cell again.
        if there
            && head & self.mask as u64 == cell
            && self.cell(head).load(Ordering::Relaxed).is_null()
        {
            // Release as in Reserve. Where it fails another has reserved it.
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            let _ = self.takers.head.compare_exchange(head, head + 1, success, failure);
        }
    }

    /// Sweep: takes the oldest leftover, an item that another has reserved and not taken. Waits as
    /// [`take`](Ring::take) does.
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

    /// The position of the oldest leftover: what a [`sweep`](Ring::sweep) would find (a moment
    /// ago). It reads one line, unless a batch is under way, or was left, or ended before an older
    /// one; then it looks at each cell once.
    ///
    /// A worker may park on the answer: it tells of any item that was reserved before the caller
    /// found that nothing [waits](Ring::waits), and that wasn't taken since.
    pub fn left(&self) -> Option<u64> {
        let among = self.leftovers();
        let is_full = |at: &u64| !self.cell(*at).load(Ordering::Relaxed).is_null();
        let left = among.clone().find(is_full);
        self.is_empty_below(left.unwrap_or(among.end));
        left
    }

    /// Adopt: all positions from that of the oldest leftover on which others have reserved, as if
    /// the caller had reserved them. Their takers may still be at it: each item is taken by one of
    /// them.
    pub fn adopt(&self) -> Option<Reserved> {
        let first = self.left()?;
        // Acquire as in `leftovers`.
        Some(Reserved { first, next: first, end: self.takers.head.load(Ordering::Acquire) })
    }

    /// Remembers that all cells of positions below this one are empty for good.
    #[inline]
    fn is_empty_below(&self, to: u64) {
        if self.takers.low.load(Ordering::Relaxed) < to {
            self.takers.low.store(to, Ordering::Release);
        }
    }

    /// The positions among which leftovers may be.
    #[inline]
    fn leftovers(&self) -> Range<u64> {
        let low = self.takers.low.load(Ordering::Relaxed);
        // Acquire pairs with Reserve: a cell below that is seen empty was emptied.
        let head = self.takers.head.load(Ordering::Acquire);
        if low < head { self.not_gone_round(low)..head } else { head..head }
    }

    /// Positions from here on, but for those whose cells have been used anew since.
    #[inline]
    fn not_gone_round(&self, from: u64) -> u64 {
        // An old one only means more positions.
        let tail = self.appenders.tail.load(Ordering::Relaxed) >> 1;
        from.max(tail.saturating_sub(self.capacity() as u64))
    }

    /// Says that all positions that these have given out are empty: the caller has taken each, or
    /// found it to be a hole. To be called at a batch's end. The positions of a batch that is left
    /// stay where leftovers are looked for.
    #[inline]
    pub fn over(&self, of: &Reserved) {
        let low = &self.takers.low;
        if of.first < of.next && low.load(Ordering::Relaxed) == of.first {
            low.store(of.next, Ordering::Release);
        }
    }

    /// Fill.
    #[inline]
    pub(crate) fn fill(&self, at: u64, item: NonNull<T>) {
        // Release pairs with the Acquire of Take, Find and Hold.
        self.cell(at).store(item.as_ptr(), Ordering::Release);
    }

    /// Publish: gives the tail back, which is at this position from now on.
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
    /// The position of the cell that is filled next. It is empty.
    pub(crate) next: u64,
    /// It is ended by the thread that began it.
    own_thread: PhantomData<*mut ()>,
}

impl<T, F: FencePolicy> Append<'_, T, F> {
    /// The number of the cell that is filled next, below the capacity. Cells follow each other.
    #[inline]
    pub fn cell(&self) -> u32 {
        (self.next as usize & self.ring.mask) as u32
    }

    /// Whether the item that was appended before is gone, as a hint: it reads the cell beside.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.ring.cell(self.next.wrapping_sub(1)).load(Ordering::Relaxed).is_null()
    }

    /// Fill and Publish: appends this item.
    #[inline]
    pub fn fill(mut self, item: NonNull<T>) {
        self.ring.fill(self.next, item);
        self.next += 1;
    }

    /// Appends this item, and keeps the tail for another one behind it; all are published together,
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

/// Positions of a [`Ring`] that are one taker's to [take](Ring::take): an iterator, oldest first.
/// Plain numbers: dropping it leaves the items in their cells, as leftovers.
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

/// What becomes of an item that was looked at, and of the look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan {
    /// It stays; the next one, please.
    Next,
    /// It is taken, and the look ends.
    Take,
    /// It stays, and the look ends.
    Stop,
}

impl<T, F: FencePolicy> Ring<T, F> {
    /// Shows `see` each item, oldest first, reserved or not, and gives out the one that it says
    /// [`Scan::Take`] of. While `see` has an item nobody takes it, so it may be read there and
    /// isn't freed; takers of just that one wait. So `see` is short, calls no user code and takes
    /// nothing from this ring. An item that comes or goes meanwhile may be shown, or not, or twice.
    /// Waits, as [`outwait`](Ring::outwait) does, where somebody else looks at the same item.
    pub fn look(&self, mut see: impl FnMut(NonNull<T>) -> Scan) -> Option<NonNull<T>> {
        // Relaxed: below any value that was ever written here nothing lies.
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

    /// Hold: keeps others from taking what lies at this position.
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

/// An item that somebody looks at.
struct HeldItem<'a, T, F: FencePolicy> {
    ring: &'a Ring<T, F>,
    at: u64,
    item: NonNull<T>,
}

impl<T, F: FencePolicy> HeldItem<'_, T, F> {
    /// TakeHeld.
    fn take(self) -> NonNull<T> {
        let item = self.item;
        // A store: while it is held nobody else writes the cell.
        self.ring.cell(self.at).store(ptr::null_mut(), Ordering::Relaxed);
        std::mem::forget(self);
        item
    }
}

impl<T, F: FencePolicy> Drop for HeldItem<'_, T, F> {
    /// LetBe; also where the look panics.
    fn drop(&mut self) {
        // Release pairs with the Acquire of Take and Find: they free the item after it was read. A
        // store, as above.
        self.ring.cell(self.at).store(self.item.as_ptr(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
