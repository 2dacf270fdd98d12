//! Model: the free list of cells, and its tag (`src/cells/README.md`, race 3).

use std::sync::Arc;

use corewise_smp::model::wrong::FreeList;
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::{cell::UnsafeCell, model::must_fail};
use loom::thread;

const CELLS: usize = 2;

struct Pool<const STEP: u32> {
    free: FreeList<STEP>,
    links: [AtomicU32; CELLS],
    /// Cells: loom reports two threads that have the same one.
    cells: [UnsafeCell<()>; CELLS],
}
// SAFETY: a thread that pops a cell has it alone; the model checks that.
unsafe impl<const STEP: u32> Sync for Pool<STEP> {}

impl<const STEP: u32> Pool<STEP> {
    fn get(&self) -> Option<usize> {
        let next = |index: u32| self.links[index as usize].load(Ordering::Relaxed);
        let index = self.free.pop(next)? as usize;
        self.cells[index].with_mut(|_| ());
        Some(index)
    }

    fn put(&self, index: usize) {
        self.cells[index].with_mut(|_| ());
        let link = |next| self.links[index].store(next, Ordering::Relaxed);
        self.free.push(index as u32, link).expect("nobody closes it");
    }
}

/// Lets one thread get a cell; the other gets both and puts the first one back.
fn two_get<const STEP: u32>() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let pool = Arc::new(Pool::<STEP> {
            free: FreeList::new(),
            links: [AtomicU32::new(0), AtomicU32::new(0)],
            cells: [UnsafeCell::new(()), UnsafeCell::new(())],
        });
        pool.put(1);
        pool.put(0);
        let other = Arc::clone(&pool);
        let other = thread::spawn(move || {
            let (first, second) = (other.get(), other.get());
            if let Some(first) = first {
                other.put(first);
            }
            second
        });
        let mine = [pool.get(), pool.get()];
        let theirs = other.join().unwrap();
        let mut had: Vec<usize> = mine.into_iter().chain([theirs]).flatten().collect();
        had.sort_unstable();
        had.dedup();
        let all = mine.into_iter().chain([theirs]).flatten().count();
        assert_eq!(had.len(), all, "a cell was given out twice");
    });
}

#[test]
fn loom_no_cell_is_given_out_twice() {
    two_get::<1>();
}

#[test]
fn loom_without_the_tag_a_cell_is_given_out_twice() {
    must_fail("loom_without_the_tag_a_cell_is_given_out_twice", two_get::<0>);
}
