//! An allocator whose calls the simulated threads pay for, and which puts what they ask for into
//! memory of its own.
//!
//! Whether two values share a cache line depends on where they lie. In the system's allocator that
//! depends on all that was allocated before, down to the length of the program's arguments; here it
//! depends on what the simulated threads do, alone. Otherwise it is as there: blocks lie side by
//! side with 8 bytes between them, and what was freed last is given out first.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

/// Where the accesses to new and freed memory come from.
pub(crate) const FILE: &str = file!();

struct Charged {
    /// L: guarded by `taken`.
    arena: UnsafeCell<Arena>,
    /// L: is the lock of the arena, for which nobody ever waits long: one OS thread simulates.
    taken: AtomicBool,
}

#[global_allocator]
static ALLOCATOR: Charged =
    Charged { arena: UnsafeCell::new(Arena::new()), taken: AtomicBool::new(false) };

/// Bytes of the arena; what isn't used takes no memory. Beyond them the system helps out.
const SPACE: usize = 1 << 30;
/// Sizes come in steps of so many bytes.
const STEP: usize = 16;
/// What the system's allocator keeps beside a block.
const BESIDE: usize = 8;
/// The least that it gives out, with that.
const LEAST: usize = 32;
/// Larger ones, with that, come in powers of two.
const LARGEST: usize = 4096;
/// Larger ones than that power are the system's.
const LAST_POWER: u32 = 26;
/// Sizes that blocks are kept apart by.
const CLASSES: usize = LARGEST / STEP + 1 + LAST_POWER as usize - LARGEST.ilog2() as usize;
/// Alignments that blocks are kept apart by: of all that is smaller, a line, and `CachePadded`.
const ALIGNS: [usize; 3] = [STEP, 64, 128];

/// A block that nobody has.
struct Free {
    next: Option<NonNull<Free>>,
}

struct Arena {
    /// Where it begins, at a multiple of a page; null where there is none yet.
    begin: *mut u8,
    /// Bytes given out so far.
    used: usize,
    /// What was freed, by alignment and size.
    free: [[Option<NonNull<Free>>; CLASSES]; ALIGNS.len()],
}

/// The place of blocks of a layout in [`Arena::free`], and how large they are; `None` where they
/// are the system's.
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

    /// Null where the block has to be the system's.
    fn take(&mut self, layout: Layout) -> *mut u8 {
        let Some((align, class, size)) = class(layout) else { return ptr::null_mut() };
        if let Some(block) = self.free[align][class] {
            // SAFETY: `put` wrote it, and nobody has had it since.
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

    /// Takes a block back; false where it is the system's.
    fn put(&mut self, block: *mut u8, layout: Layout) -> bool {
        let within = !self.begin.is_null()
            && (self.begin.addr()..self.begin.addr() + SPACE).contains(&block.addr());
        let (true, Some((align, class, _))) = (within, class(layout)) else { return false };
        let block = block.cast::<Free>();
        // SAFETY: the caller gives the block up, which has 16 bytes at least, at a multiple of 16.
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
        // SAFETY: `taken` was false: nobody else has a reference.
        let result = f(unsafe { &mut *self.arena.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}

// SAFETY: `with` gives the arena to one thread at a time.
unsafe impl Sync for Charged {}
// SAFETY: blocks are the system's, or parts of one of the system's that no two calls are given at
// once: as large as the layout asks, at a multiple of its alignment. The calls to the simulator
// besides change no memory of the caller.
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
            // SAFETY: as the caller says; it isn't the arena's.
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
