//! The system's allocator, counting where a run asks for it.
//!
//! All Rust runtimes pay the same for the question: one load of a line that is never written while
//! it is measured.

use std::alloc::{GlobalAlloc, Layout, System};

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) struct Counting;

/// A: Relaxed; set before anything is measured.
static COUNTS: AtomicBool = AtomicBool::new(false);
/// A: Relaxed; read when all work is done.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Counts from now on.
pub(crate) fn count() {
    COUNTS.store(true, Ordering::Relaxed);
}

/// How many were counted.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

impl Counting {
    #[inline]
    fn look() {
        if COUNTS.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: everything is the system's allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::look();
        // SAFETY: the caller's promises, passed on.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::look();
        // SAFETY: the caller's promises, passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::look();
        // SAFETY: the caller's promises, passed on.
        unsafe { System.realloc(block, layout, size) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises, passed on.
        unsafe { System.dealloc(block, layout) }
    }
}
