//! An allocator whose calls the simulated threads pay for.

use std::alloc::{GlobalAlloc, Layout, System};

struct Charged;

#[global_allocator]
static ALLOCATOR: Charged = Charged;

// SAFETY: the system's allocator does it all; what is told to the simulator besides changes no memory of the caller.
unsafe impl GlobalAlloc for Charged {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        let block = unsafe { System.alloc(layout) };
        corewise_sim::allocated(block.addr(), layout.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        corewise_sim::freed(block.addr());
        // SAFETY: as the caller says.
        unsafe { System.dealloc(block, layout) }
    }
}
