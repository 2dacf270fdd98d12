//! A global allocator that counts, for measuring programs.
//!
//! The allocator counts only once it is started, in runs that measure nothing else. Otherwise it
//! costs the load of a flag that never changes. The libraries don't depend on it.

use std::alloc::{GlobalAlloc, Layout, System};

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts the allocations that it hands to the system's allocator.
///
/// ```
/// use corewise_bench::counting::Counting;
///
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting::system();
///
/// ALLOCATOR.start();
/// let before = ALLOCATOR.count();
/// drop(std::hint::black_box(Box::new(7)));
/// assert_eq!(ALLOCATOR.count(), before + 1);
/// ```
#[derive(Debug)]
pub struct Counting {
    /// A: true once it counts; Relaxed, set before the counted part begins.
    on: AtomicBool,
    /// A: number of allocations; Relaxed, read once the allocating threads have been waited for.
    count: AtomicU64,
}

impl Counting {
    /// Creates an allocator that counts nothing yet.
    pub const fn system() -> Counting {
        Counting { on: AtomicBool::new(false), count: AtomicU64::new(0) }
    }

    /// Begins to count.
    pub fn start(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    /// Returns the number of allocations so far, including those of blocks that grow.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    #[inline]
    fn one(&self) {
        if self.on.load(Ordering::Relaxed) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: all calls go unchanged to the system's allocator, which keeps the contract; counting
// allocates nothing and doesn't unwind.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.one();
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block is from the system's allocator, as every one is.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.one();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.one();
        // SAFETY: as in `dealloc`.
        unsafe { System.realloc(block, layout, size) }
    }
}
