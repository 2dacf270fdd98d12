//! Memory that requests are done with, back to the system.
//!
//! The buffers of requests come from the C library's heap, which keeps much of what is freed. Nothing may need it
//! again for days. The heap of glibc has an arena for each few threads. `malloc_trim` gives back what is free inside them, but of
//! the free memory at their ends (an arena's *top*) only that of the main one. The others' are cut off by a free in that arena, where
//! they are longer than a threshold. The threshold grows to twice the largest buffer that was ever freed: 64 MiB for each arena.
//!
//! Each arena reserves 64 MiB of the address space. Where that is limited (`RLIMIT_AS`), eight
//! arenas a CPU would take it from the buffers, and an allocation that fails ends the process:
//! there all arenas together take an eighth of it.

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// The heap isn't looked through for less than this, in bytes.
const WORTH: u64 = 16 << 20;

/// Counts what has been freed.
#[derive(Debug)]
pub(crate) struct Freed {
    /// A: bytes that were freed since the heap was last looked through. Relaxed: a count.
    bytes: AtomicU64,
    /// L: is the lock; one thread at a time changes the heap's threshold. A leaf.
    heap: Mutex<()>,
}

impl Freed {
    pub(crate) fn new() -> Freed {
        heap::set_thresholds();
        Freed { bytes: AtomicU64::new(0), heap: Mutex::new(()) }
    }

    /// So many bytes were freed. Any context.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives what is free back to the system, as far as that pays: on the thread of a client that leaves, when it has freed
    /// everything. May take milliseconds.
    pub(crate) fn give_to_system(&self) {
        let _one = self.heap.lock();
        heap::cut_top();
        if self.bytes.load(Ordering::Relaxed) >= WORTH {
            self.bytes.store(0, Ordering::Relaxed);
            heap::trim();
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod heap {
    use std::ffi::c_int;
    use std::hint::black_box;

    use rustix::process::{Resource, getrlimit};

    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_THRESHOLD: c_int = -3;
    const M_ARENA_MAX: c_int = -8;
    /// What an arena reserves of the address space, in bytes.
    const ARENA: u64 = 64 << 20;
    /// The largest threshold: no request's buffer has a mapping of its own, and pays for its pages each time.
    const MMAP: c_int = 32 << 20;
    /// What an arena keeps at its end for the next requests.
    const TOP: c_int = 16 << 20;
    /// From this size on a free looks at its arena's end.
    const LOOKS: usize = 128 << 10;

    unsafe extern "C" {
        /// `malloc_trim(3)`.
        safe fn malloc_trim(pad: usize) -> c_int;
        /// `mallopt(3)`.
        safe fn mallopt(param: c_int, value: c_int) -> c_int;
    }

    pub(super) fn set_thresholds() {
        mallopt(M_MMAP_THRESHOLD, MMAP);
        mallopt(M_TRIM_THRESHOLD, TOP);
        if let Some(space) = getrlimit(Resource::As).current {
            mallopt(M_ARENA_MAX, arenas(space));
        }
    }

    /// How many arenas an address space of so many bytes has room for.
    fn arenas(space: u64) -> c_int {
        (space / 8 / ARENA).clamp(1, 1024) as c_int
    }

    /// Gives the end of this thread's arena back.
    pub(super) fn cut_top() {
        mallopt(M_TRIM_THRESHOLD, 0);
        drop(black_box(Vec::<u8>::with_capacity(LOOKS)));
        mallopt(M_TRIM_THRESHOLD, TOP);
    }

    pub(super) fn trim() {
        malloc_trim(0);
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn a_small_address_space_has_few_arenas() {
            let arenas = [0, 512 << 20, 1 << 30, 16 << 30, u64::MAX].map(super::arenas);
            assert_eq!(arenas, [1, 1, 2, 32, 1024]);
        }
    }
}

/// Other allocators give back by themselves, or have no way to be asked.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod heap {
    pub(super) fn set_thresholds() {}
    pub(super) fn cut_top() {}
    pub(super) fn trim() {}
}
