//! An allocator with memory of its own. Its calls cost simulated threads virtual time.
//!
//! Whether two values share a cache line depends on their addresses. In the system's allocator
//! these depend on all earlier allocations, even on the length of the program's arguments. Here
//! they depend on the simulated threads alone. Otherwise blocks lie as in the system's: side by
//! side with 8 bytes between them, and the block freed last is given out first.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

/// The file to which accesses to new and freed memory are charged.
pub(crate) const FILE: &str = file!();

struct Charged {
    /// L: guarded by `taken`.
    arena: UnsafeCell<Arena>,
    /// L: is the lock of the arena. Waits are short: one OS thread simulates.
    taken: AtomicBool,
}

#[global_allocator]
static ALLOCATOR: Charged =
    Charged { arena: UnsafeCell::new(Arena::new()), taken: AtomicBool::new(false) };

/// Bytes of the arena. Unused ones take no memory. When it is full, blocks are the system's.
const SPACE: usize = 1 << 30;
/// Step of sizes, in bytes.
const STEP: usize = 16;
/// Bytes that the system's allocator keeps beside a block.
const BESIDE: usize = 8;
/// The smallest block of the system's allocator, with these bytes.
const LEAST: usize = 32;
/// The largest size in steps, with these bytes. Larger sizes are powers of two.
const LARGEST: usize = 4096;
/// Logarithm of the largest size in the arena. Larger blocks are the system's.
const LAST_POWER: u32 = 26;
/// Number of sizes, each with a free list.
const CLASSES: usize = LARGEST / STEP + 1 + LAST_POWER as usize - LARGEST.ilog2() as usize;
/// Alignments, each with free lists: any smaller one, a line, and `CachePadded`.
const ALIGNS: [usize; 3] = [STEP, 64, 128];

/// A free block.
struct Free {
    next: Option<NonNull<Free>>,
}

struct Arena {
    /// The first byte, at a multiple of a page, or null before the first allocation.
    begin: *mut u8,
    /// Bytes given out so far.
    used: usize,
    /// Free blocks by alignment and size.
    free: [[Option<NonNull<Free>>; CLASSES]; ALIGNS.len()],
}

/// Returns the indices of a layout's blocks in [`Arena::free`], and their size. Blocks of the
/// system give `None`.
fn class(layout: Layout) -> Option<(usize, usize, usize)> {
    let align = ALIGNS.iter().position(|align| layout.align() <= *align)?;
    let size = (layout.size().checked_add(BESIDE)?).max(LEAST).next_multiple_of(STEP);
    if size <= LARGEST {
        return Some((align, size / STEP, size - BESIDE));
    }
    let power = size.next_power_of_two();
    let nth = (power.ilog2() - LARGEST.ilog2()) as usize;
    (power <= 1 << LAST_POWER).then_some((align, LARGEST / STEP + nth, power - BESIDE))
}

impl Arena {
    const fn new() -> Arena {
        let free = [[None; CLASSES]; ALIGNS.len()];
        Arena { begin: ptr::null_mut(), used: 0, free }
    }

    /// Takes a block, or returns null if it has to be the system's.
    fn take(&mut self, layout: Layout) -> *mut u8 {
        let Some((align, class, size)) = class(layout) else { return ptr::null_mut() };
        if let Some(block) = self.free[align][class] {
            // SAFETY: `put` wrote it, and the block has been free since.
            self.free[align][class] = unsafe { block.as_ref() }.next;
            return block.as_ptr().cast();
        }
        if self.begin.is_null() {
            let space = Layout::from_size_align(SPACE, LARGEST).expect("a power of two");
            // SAFETY: the layout isn't empty.
            self.begin = unsafe { System.alloc(space) };
            if self.begin.is_null() {
                return self.begin;
            }
        }
        let at = (self.used + BESIDE).next_multiple_of(ALIGNS[align]);
        let end = at + size;
        if end > SPACE {
            return ptr::null_mut();
        }
        self.used = end;
        // SAFETY: the block lies inside of the space.
        unsafe { self.begin.add(at) }
    }

    /// Puts a block back, or returns false if it is the system's.
    fn put(&mut self, block: *mut u8, layout: Layout) -> bool {
        let within = !self.begin.is_null()
            && (self.begin.addr()..self.begin.addr() + SPACE).contains(&block.addr());
        let (true, Some((align, class, _))) = (within, class(layout)) else { return false };
        let block = block.cast::<Free>();
        // SAFETY: the caller gives up the block, which has at least 16 bytes, at a multiple of 16.
        unsafe { block.write(Free { next: self.free[align][class] }) };
        self.free[align][class] = NonNull::new(block);
        true
    }
}

impl Charged {
    fn with<R>(&self, f: impl FnOnce(&mut Arena) -> R) -> R {
        while self.taken.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: `taken` was false, so there is no other reference.
        let result = f(unsafe { &mut *self.arena.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}

// SAFETY: `with` gives the arena to one thread at a time.
unsafe impl Sync for Charged {}
// SAFETY: blocks are the system's, or disjoint parts of one of the system's: as large as the layout
// asks, at a multiple of its alignment. The calls to the simulator change no memory of the caller.
unsafe impl GlobalAlloc for Charged {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut block = ptr::null_mut();
        if corewise_sim::is_simulated() {
            block = self.with(|arena| arena.take(layout));
        }
        if block.is_null() {
            // SAFETY: as the caller says.
            block = unsafe { System.alloc(layout) };
        }
        corewise_sim::allocated(block.addr(), layout.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        corewise_sim::freed(block.addr());
        if !self.with(|arena| arena.put(block, layout)) {
            // SAFETY: as the caller says; the block isn't the arena's.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_their_layout_lie_apart_and_are_used_again() {
        let (mut arena, mut blocks) = (Arena::new(), Vec::new());
        for (size, align) in
            [(1, 1), (24, 8), (40, 16), (64, 64), (200, 128), (24, 8), (4088, 1), (5000, 64)]
        {
            let layout = Layout::from_size_align(size, align).expect("valid");
            let block = arena.take(layout);
            assert!(!block.is_null() && block.addr() % align == 0);
            blocks.push((block, layout));
        }
        let mut ranges: Vec<_> =
            blocks.iter().map(|(block, layout)| (block.addr(), layout.size())).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        for (block, layout) in &blocks {
            assert!(arena.put(*block, *layout));
            assert_eq!(arena.take(*layout), *block, "the last one freed");
        }
        let large = Layout::from_size_align(1 << LAST_POWER, 1).expect("valid");
        assert!(arena.take(large).is_null());
    }
}
