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
//!
//! Below such a limit, stacks and mappings take what the buffers need, too. A program that knows
//! how much that is reserves it ([`reserve_heap`]): the end of the main arena is mapped before
//! there are clients, and is never given back. Allocations that find nothing in another arena come
//! from there.

use std::io;
use std::sync::OnceLock;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// The heap isn't looked through for less than this, in bytes.
const WORTH: u64 = 16 << 20;

/// Set once the heap has bytes that are never given back, before there are clients.
static RESERVED: OnceLock<()> = OnceLock::new();

/// Limits what the C library's heap takes of the address space, as
/// [`Server::new`](crate::Server::new) does: for a program that starts threads before it has a
/// server.
pub fn limit_heap() {
    heap::set_thresholds();
}

/// Maps so many bytes for the heap, which nobody can take from it: for a program whose address
/// space is limited, before it has clients. Nothing happens where the C library isn't glibc. On the
/// main thread.
///
/// # Errors
/// `OutOfMemory`: the limits of the process don't leave so much.
pub fn reserve_heap(bytes: u64) -> io::Result<()> {
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let _ = RESERVED.set(());
    heap::reserve(bytes)
}

fn is_reserved() -> bool {
    RESERVED.get().is_some()
}

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
        if !is_reserved() {
            heap::cut_top();
        }
        if self.bytes.load(Ordering::Relaxed) >= WORTH {
            self.bytes.store(0, Ordering::Relaxed);
            heap::trim();
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod heap {
    use std::alloc::{Layout, alloc, dealloc};
    use std::ffi::c_int;
    use std::hint::black_box;
    use std::io;

    use rustix::process::{Resource, getrlimit};

    use super::is_reserved;

    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_THRESHOLD: c_int = -3;
    const M_MMAP_MAX: c_int = -4;
    const M_ARENA_MAX: c_int = -8;
    /// How many allocations may have a mapping of their own: the C library's number.
    const MAPPINGS: c_int = 65_536;
    /// What an arena reserves of the address space, in bytes.
    const ARENA: u64 = 64 << 20;
    /// The largest threshold: no request's buffer has a mapping of its own, and pays for its pages each time.
    const MMAP: c_int = 32 << 20;
    /// What an arena keeps at its end for the next requests.
    const TOP: c_int = 16 << 20;
    /// No end of an arena is given back.
    const KEEP: c_int = -1;
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
        mallopt(M_TRIM_THRESHOLD, if is_reserved() { KEEP } else { TOP });
        if let Some(space) = getrlimit(Resource::As).current {
            mallopt(M_ARENA_MAX, arenas(space));
        }
    }

    /// Maps so many bytes at the end of this thread's arena.
    pub(super) fn reserve(bytes: usize) -> io::Result<()> {
        mallopt(M_TRIM_THRESHOLD, KEEP);
        let layout = Layout::from_size_align(bytes.max(1), 1).map_err(io::Error::other)?;
        // An allocation with a mapping of its own would give that back.
        mallopt(M_MMAP_MAX, 0);
        // SAFETY: the size isn't 0.
        let reserved = black_box(unsafe { alloc(layout) });
        mallopt(M_MMAP_MAX, MAPPINGS);
        if reserved.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: it was allocated above, with this layout.
        unsafe { dealloc(reserved, layout) };
        Ok(())
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
        // The bytes that stay at the end of the main arena.
        let pad = if is_reserved() { usize::MAX / 2 } else { 0 };
        malloc_trim(pad);
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
    pub(super) fn reserve(_: usize) -> std::io::Result<()> {
        Ok(())
    }
}
