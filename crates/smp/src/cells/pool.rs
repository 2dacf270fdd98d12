//! Where cells come from: one pool per source CPU, which grows and never shrinks.
//!
//! A pool's chunks are each as large as all before it, so that a cell is found by its index with a shift, and a
//! pool of n cells was grown log n times. They are unmapped when the handle is gone and the last cell is
//! back: never under a caller, a target or a waiter (rule 2.2.10).

use corewise_topology::CpuId;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use corewise_sync::{CachePadded, Mutex, hint};

use super::cell::Cell;
use super::free_list::{Closed, FreeList};
use crate::spin::Patience;

/// Cells in the first chunk.
const FIRST: u32 = 16;
/// `FIRST << CHUNKS` cells, about a billion, are more than fit in memory.
const CHUNKS: usize = 26;

/// The watch over a handle's calls, as those know it that wait for a cell.
pub(crate) trait CallWatch: Send + Sync {
    /// Wakes the targets that have never seen the call.
    fn wake_again(&self, cell: &Cell);

    /// Reports that a thread has waited for so long, where the call hasn't ended meanwhile.
    fn report_late(&self, cell: &Cell, waited: Duration);

    /// Somebody begins to await the call, or does still: steps Publish and those that follow.
    fn awaited(&self, cell: &Cell);
}

/// How waits for the calls of a handle are watched.
#[derive(Clone)]
pub(crate) struct Watched {
    /// A wait that takes longer is reported; `None`: none is.
    pub(crate) limit: Option<Duration>,
    pub(crate) watch: Arc<dyn CallWatch>,
}

/// The pools of one handle. Dropping it lets each pool go when its last cell is back.
pub(crate) struct Pools {
    pools: Box<[NonNull<Pool>]>,
}

// SAFETY: a pool is `Sync`, and each is dropped once: by `Pools::drop` or by the last cell after that.
unsafe impl Send for Pools {}
// SAFETY: as above.
unsafe impl Sync for Pools {}

impl Pools {
    /// So many pools, all empty: a pool's first chunk is made when its first cell is wanted.
    pub(crate) fn watched(pools: usize, watched: &Watched) -> Self {
        let make = |_| NonNull::from(Box::leak(Box::new(Pool::new(watched.clone()))));
        Pools { pools: (0..pools.max(1)).map(make).collect() }
    }

    /// A free cell of the source CPU's pool. Lock-free, but where the pool has to grow.
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

    /// As [`Pools::watched`], where nobody watches.
    #[cfg(test)]
    pub(crate) fn new(pools: usize) -> Self {
        struct Nobody;

        impl CallWatch for Nobody {
            fn wake_again(&self, _: &Cell) {}

            fn report_late(&self, _: &Cell, _: Duration) {}

            fn awaited(&self, _: &Cell) {}
        }

        Pools::watched(pools, &Watched { limit: None, watch: Arc::new(Nobody) })
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
            // SAFETY: once, and nobody gets a cell any more.
            unsafe { Pool::orphan(*pool) };
        }
    }
}

/// One CPU's cells.
pub(crate) struct Pool {
    /// I: here, since each owner of a cell reaches it.
    watched: Watched,
    /// What those who wait for its cells have learned.
    patience: CachePadded<Patience>,
    free: CachePadded<FreeList<1>>,
    /// A: the chunks, null where there is none yet. Release when one is added, under `grow`.
    chunks: [AtomicPtr<Cell>; CHUNKS],
    /// L: is the lock; guards the number of chunks.
    grow: Mutex<usize>,
    /// A: once orphaned: how many cells are still out. Before that is known, 0 less those that have come back
    /// since, modulo 2^64.
    out: AtomicU64,
}

/// A cell's place: its chunk, and its position there.
fn place(index: u32) -> (usize, usize) {
    let n = index + FIRST;
    let chunk = (n.ilog2() - FIRST.ilog2()) as usize;
    (chunk, (n - (FIRST << chunk)) as usize)
}

impl Pool {
    fn new(watched: Watched) -> Self {
        Pool {
            watched,
            patience: CachePadded::new(Patience::new()),
            free: CachePadded::new(FreeList::new()),
            chunks: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
            grow: Mutex::new(0),
            out: AtomicU64::new(0),
        }
    }

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

    /// The pool is empty: makes one more chunk, unless somebody else did.
    ///
    /// # Safety
    /// As [`Pool::get`].
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
            // Nobody closes a list that somebody still gets cells from.
            let _ = pool.free.push(index, |next| cell.set_next_free(next));
        }
        NonNull::from(pool.cell(first))
    }

    /// The cell of an index that the pool has given out.
    #[inline]
    fn cell(&self, index: u32) -> &Cell {
        let (chunk, position) = place(index);
        let cells = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: an index is known only after its chunk was added, and the chunk has so many cells; it
        // lives as long as the pool.
        unsafe { &*cells.add(position) }
    }

    #[inline]
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    #[inline]
    pub(super) fn patience(&self) -> &Patience {
        &self.patience
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
    /// The cell was had from this pool, and nobody uses it any more.
    #[inline]
    pub(super) unsafe fn put(this: NonNull<Pool>, cell: NonNull<Cell>) {
        // Local references: as soon as the cell is in the list, others may free both.
        // SAFETY: a pool lives at least until its last cell is back.
        let (pool, index) = unsafe { (this.as_ref(), cell.as_ref().index()) };
        // SAFETY: the cell is ours until the push that follows each of these calls.
        let link = |next| unsafe { cell.as_ref() }.set_next_free(next);
        if let Err(Closed) = pool.free.push(index, link) {
            // AcqRel: what was done with the other cells comes before the pool is freed.
            if pool.out.fetch_sub(1, Ordering::AcqRel) == 1 {
                // SAFETY: `orphan` has added how many were out, and this was the last of them.
                unsafe { Pool::free(this) };
            }
        }
    }

    /// The handle is gone: nobody gets a cell any more.
    ///
    /// # Safety
    /// Once.
    unsafe fn orphan(this: NonNull<Pool>) {
        // SAFETY: it is freed here or later.
        let pool = unsafe { this.as_ref() };
        let all = u64::from((FIRST << *pool.grow.lock()) - FIRST);
        let free = u64::from(pool.free.close(|index| pool.cell(index).next_free()));
        let out = all - free;
        // Those that came back after the closing have been counted off already. AcqRel as in `put`.
        if pool.out.fetch_add(out, Ordering::AcqRel).wrapping_add(out) == 0 {
            // SAFETY: all cells are back, and the last of them saw a number that was not 1 then.
            unsafe { Pool::free(this) };
        }
    }

    /// # Safety
    /// All cells are back, and nobody else frees it.
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
