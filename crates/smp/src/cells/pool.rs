//! The source of cells: one pool per source CPU, which grows and never shrinks.
//!
//! A pool's chunks are each as large as all before it. So a cell is found by its index with a
//! shift, and a pool of n cells has grown log n times. The chunks are unmapped when the handle is
//! gone and the last cell is back: never under a caller, a target or a waiter (rule 2.2.10).
//!
//! The free cells of a pool are a stack of indices that any thread pushes to and pops from,
//! Treiber's. The head word holds the index of the first free cell and a tag that each pop counts
//! up. Without the tag there is the ABA problem. A thread reads the head. Then others pop that cell
//! and its next, and push the first one back. The thread would take the head for unchanged, and a
//! used cell would become the first free one. A pop that sleeps through exactly 2^32 others would
//! be fooled.
//!
//! Cells are never unmapped while the list is open, so a pop may read the link of a cell that
//! another thread has just taken; the exchange then fails. `tests/loom/free_list.rs`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use corewise_sync::{CachePadded, Mutex, hint};
use corewise_topology::CpuId;

use crate::cells::cell::Cell;
use crate::spin::WaiterHabit;

/// Cells in the first chunk.
const FIRST: u32 = 16;
/// `FIRST << CHUNKS` cells, about a billion, are more than fit in memory.
const CHUNKS: usize = 26;

/// The watch over a handle's calls, for threads that wait for a cell.
pub(crate) trait CallWatch: Send + Sync {
    /// Wakes the targets that have never seen the call.
    fn wake_again(&self, cell: &Cell);

    /// Reports that a thread has waited for that long, if the call hasn't ended meanwhile.
    fn report_late(&self, cell: &Cell, waited: Duration);

    /// Records that a future awaits the call, now or still: steps Publish and those that follow.
    fn awaited(&self, cell: &Cell);
}

/// The watching of waits for the calls of a handle.
#[derive(Clone)]
pub(crate) struct Watched {
    /// Time after which a wait is reported; `None`: none is.
    pub(crate) limit: Option<Duration>,
    pub(crate) watch: Arc<dyn CallWatch>,
}

/// The pools of one handle. Dropping it frees each pool when its last cell is back.
pub(crate) struct Pools {
    pools: Box<[NonNull<Pool>]>,
}

// SAFETY: a pool is `Sync`, and each is dropped once: by `Pools::drop` or by the last cell after
// that.
unsafe impl Send for Pools {}
// SAFETY: as above.
unsafe impl Sync for Pools {}

impl Pools {
    /// Creates that many pools, all empty: a pool's first chunk is made when its first cell is
    /// wanted.
    pub(crate) fn watched(pools: usize, watched: &Watched) -> Self {
        let make = |_| NonNull::from(Box::leak(Box::new(Pool::new(watched.clone()))));
        Pools { pools: (0..pools.max(1)).map(make).collect() }
    }

    /// Takes a free cell of the source CPU's pool. Lock-free, except when the pool has to grow.
    #[inline]
    pub(crate) fn get(&self, source: CpuId) -> NonNull<Cell> {
        if hint::EVERY_SCHEDULE {
            // The free list has a model of its own.
            return Cell::alone();
        }
        let pool = self.pools[source.index() % self.pools.len()];
        // SAFETY: it lives until `drop` lets it go.
        unsafe { Pool::get(pool) }
    }

    /// Creates pools like [`Pools::watched`], with no watch.
    #[cfg(test)]
    pub(crate) fn new(pools: usize) -> Self {
        struct NoWatch;

        impl CallWatch for NoWatch {
            fn wake_again(&self, _: &Cell) {}

            fn report_late(&self, _: &Cell, _: Duration) {}

            fn awaited(&self, _: &Cell) {}
        }

        Pools::watched(pools, &Watched { limit: None, watch: Arc::new(NoWatch) })
    }

    /// Calls `see` for each cell that was ever made, free or not. Any thread.
    pub(crate) fn for_each(&self, mut see: impl FnMut(&Cell)) {
        for pool in &self.pools {
            // SAFETY: as in `get`.
            unsafe { pool.as_ref() }.for_each(&mut see);
        }
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        for pool in &self.pools {
            // SAFETY: this happens once, and no thread gets a cell any more.
            unsafe { Pool::orphan(*pool) };
        }
    }
}

/// One CPU's cells.
pub(crate) struct Pool {
    /// I: here, since each owner of a cell reaches it.
    watched: Watched,
    /// The experience of the waiters for its cells.
    waiter_habit: CachePadded<WaiterHabit>,
    free: CachePadded<FreeList<1>>,
    /// A: the chunks, null where there is none yet. Release when one is added, under `grow`.
    chunks: [AtomicPtr<Cell>; CHUNKS],
    /// L: is the lock; guards the number of chunks.
    grow: Mutex<usize>,
    /// A: once orphaned: the number of cells that are still out. Before that is known, 0 less those
    /// that have come back since, modulo 2^64.
    out: AtomicU64,
}

/// Returns a cell's place: its chunk, and its position there.
fn place(index: u32) -> (usize, usize) {
    let n = index + FIRST;
    let chunk = (n.ilog2() - FIRST.ilog2()) as usize;
    (chunk, (n - (FIRST << chunk)) as usize)
}

impl Pool {
    fn new(watched: Watched) -> Self {
        Pool {
            watched,
            waiter_habit: CachePadded::new(WaiterHabit::new()),
            free: CachePadded::new(FreeList::new()),
            chunks: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
            grow: Mutex::new(0),
            out: AtomicU64::new(0),
        }
    }

    /// Takes a free cell.
    ///
    /// # Safety
    /// The pool lives, and wasn't orphaned.
    #[inline]
    unsafe fn get(this: NonNull<Pool>) -> NonNull<Cell> {
        // SAFETY: the caller promises that it lives.
        let pool = unsafe { this.as_ref() };
        match pool.free.pop(|index| pool.cell(index).next_free()) {
            Some(index) => NonNull::from(pool.cell(index)),
            // SAFETY: as here.
            None => unsafe { Pool::get_new(this) },
        }
    }

    /// Adds a chunk to an empty pool, unless another thread did.
    ///
    /// # Safety
    /// The same as for [`Pool::get`].
    #[cold]
    unsafe fn get_new(this: NonNull<Pool>) -> NonNull<Cell> {
        // SAFETY: the caller promises that it lives.
        let pool = unsafe { this.as_ref() };
        let mut chunks = pool.grow.lock();
        if let Some(index) = pool.free.pop(|index| pool.cell(index).next_free()) {
            return NonNull::from(pool.cell(index));
        }
        let chunk = *chunks;
        assert!(chunk < CHUNKS, "a billion calls of one CPU are under way");
        let cells = FIRST << chunk;
        let first = cells - FIRST;
        // The cells' way back is the pool's own pointer, which may free it, and no borrow's.
        let made: Box<[Cell]> = (first..first + cells).map(|i| Cell::new(Some(this), i)).collect();
        let made = Box::into_raw(made).cast::<Cell>();
        // Release pairs with the Acquire in `cell` and `for_each`.
        pool.chunks[chunk].store(made, Ordering::Release);
        *chunks = chunk + 1;
        for index in first + 1..first + cells {
            let cell = pool.cell(index);
            // No thread closes a list from which others still take cells.
            let _ = pool.free.push(index, |next| cell.set_next_free(next));
        }
        NonNull::from(pool.cell(first))
    }

    /// Returns the cell of an index that the pool has given out.
    #[inline]
    fn cell(&self, index: u32) -> &Cell {
        let (chunk, position) = place(index);
        let cells = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: an index is known only after its chunk was added, and the chunk has that many
        // cells; it lives as long as the pool.
        unsafe { &*cells.add(position) }
    }

    #[inline]
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    #[inline]
    pub(super) fn waiter_habit(&self) -> &WaiterHabit {
        &self.waiter_habit
    }

    pub(super) fn for_each(&self, see: &mut impl FnMut(&Cell)) {
        for (chunk, cells) in self.chunks.iter().enumerate() {
            let cells = cells.load(Ordering::Acquire);
            if cells.is_null() {
                return;
            }
            for position in 0..(FIRST as usize) << chunk {
                // SAFETY: as in `cell`.
                see(unsafe { &*cells.add(position) });
            }
        }
    }

    /// Gives a cell back. The last one after the pool was orphaned frees the pool.
    ///
    /// # Safety
    /// The cell came from this pool, and no thread uses it any more.
    #[inline]
    pub(super) unsafe fn put(this: NonNull<Pool>, cell: NonNull<Cell>) {
        // Local references: as soon as the cell is in the list, others may free both.
        // SAFETY: a pool lives at least until its last cell is back.
        let (pool, index) = unsafe { (this.as_ref(), cell.as_ref().index()) };
        // SAFETY: the cell is ours until the push that follows each of these calls.
        let link = |next| unsafe { cell.as_ref() }.set_next_free(next);
        if let Err(Closed) = pool.free.push(index, link) {
            // AcqRel: all uses of the other cells come before the pool is freed.
            if pool.out.fetch_sub(1, Ordering::AcqRel) == 1 {
                // SAFETY: `orphan` has added the number of cells that were out, and this was the
                // last of them.
                unsafe { Pool::free(this) };
            }
        }
    }

    /// Orphans the pool: the handle is gone, and no thread takes a cell any more.
    ///
    /// # Safety
    /// Called once.
    unsafe fn orphan(this: NonNull<Pool>) {
        // SAFETY: it is freed here or later.
        let pool = unsafe { this.as_ref() };
        let all = u64::from((FIRST << *pool.grow.lock()) - FIRST);
        let free = u64::from(pool.free.close(|index| pool.cell(index).next_free()));
        let out = all - free;
        // Cells that came back after the closing have been counted off already. AcqRel as in `put`.
        if pool.out.fetch_add(out, Ordering::AcqRel).wrapping_add(out) == 0 {
            // SAFETY: all cells are back, and the last of them saw a number that was not 1 then.
            unsafe { Pool::free(this) };
        }
    }

    /// Frees the pool and its chunks.
    ///
    /// # Safety
    /// All cells are back, and no other thread frees it.
    unsafe fn free(this: NonNull<Pool>) {
        // SAFETY: `Pools::new` leaked it, and the caller is the last to use it.
        let pool = unsafe { Box::from_raw(this.as_ptr()) };
        for (chunk, cells) in pool.chunks.iter().enumerate() {
            let cells = cells.load(Ordering::Relaxed);
            if cells.is_null() {
                return;
            }
            let all = std::ptr::slice_from_raw_parts_mut(cells, (FIRST as usize) << chunk);
            // SAFETY: `get_new` made it with this length.
            drop(unsafe { Box::from_raw(all) });
        }
    }
}

/// Value in the index half of the word: nothing is free.
const NONE: u32 = 0;
/// Value in the index half of the word: the list is closed.
const CLOSED: u32 = u32::MAX;

/// The stack of free cells. `STEP` is what a pop adds to the tag: 1, and 0 in the model that has to
/// fail.
#[allow(unreachable_pub, reason = "the models reach it")]
pub struct FreeList<const STEP: u32> {
    /// A: low half: the first free cell's index plus one, or `NONE` or `CLOSED`; high half: the
    /// tag.
    head: AtomicU64,
}

/// The list was closed before the push.
#[derive(Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "the models reach it")]
pub struct Closed;

fn pack(tag: u32, first: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(first)
}

fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

#[allow(unreachable_pub, reason = "the models reach it")]
impl<const STEP: u32> FreeList<STEP> {
    /// Creates a list in which nothing is free.
    #[allow(clippy::new_without_default, reason = "for the crate and its models alone")]
    pub fn new() -> Self {
        FreeList { head: AtomicU64::new(pack(0, NONE)) }
    }

    /// Takes a free cell, and returns its index. `next` reads what the push of a cell wrote to its
    /// link. Lock-free.
    pub fn pop(&self, next: impl Fn(u32) -> u32) -> Option<u32> {
        // Acquire pairs with the Release of `push`: the link and the last user's writes are
        // visible.
        let mut now = self.head.load(Ordering::Acquire);
        loop {
            let (tag, first) = unpack(now);
            if first == NONE || first == CLOSED {
                return None;
            }
            let after = pack(tag.wrapping_add(STEP), next(first - 1));
            let (success, failure) = (Ordering::Acquire, Ordering::Acquire);
            match self.head.compare_exchange(now, after, success, failure) {
                Ok(_) => return Some(first - 1),
                Err(found) => now = found,
            }
        }
    }

    /// Puts a cell back that no thread uses any more; `link` writes its link. Lock-free.
    ///
    /// # Errors
    /// The list is closed.
    pub fn push(&self, index: u32, link: impl Fn(u32)) -> Result<(), Closed> {
        let mut now = self.head.load(Ordering::Relaxed);
        loop {
            let (tag, first) = unpack(now);
            if first == CLOSED {
                return Err(Closed);
            }
            link(first);
            // Release pairs with the Acquire of `pop` and `close`. Acquire: a thread that finds it
            // closed comes after the thread that closed it.
            match self.head.compare_exchange(
                now,
                pack(tag, index + 1),
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(()),
                Err(found) => now = found,
            }
        }
    }

    /// Closes it, for good; returns how many cells are in it.
    pub(crate) fn close(&self, next: impl Fn(u32) -> u32) -> u32 {
        let (_, mut first) = unpack(self.head.swap(pack(0, CLOSED), Ordering::AcqRel));
        let mut free = 0;
        while first != NONE && first != CLOSED {
            free += 1;
            first = next(first - 1);
        }
        free
    }
}
