//! The memory of requests: one budget for the whole server.
//!
//! Each connection has a share of its own, which no other can take. Further memory comes from a
//! [`Pool`] that all share, first come, first served. A request takes all it needs in one step, or
//! waits and holds nothing of it.
//!
//! Steps, races and proof: `README.md` beside this file. Model: `tests/loom/memory.rs`.
//!
//! # Memory that returns to the system
//!
//! The buffers of requests come from the C library's heap, which keeps much of the freed memory,
//! although it may not be needed again for days. glibc's heap has an arena for each few threads.
//! `malloc_trim` returns the free pages inside all arenas. Of the free memory at an arena's end
//! (its *top*), it returns only that of the main one. In another arena, a free returns the top if
//! it is longer than a threshold. The threshold grows to twice the largest buffer that was ever
//! freed: 64 MiB for each arena.
//!
//! Each arena reserves 64 MiB of the address space. If that is limited (`RLIMIT_AS`), eight arenas
//! a CPU would leave too little for the buffers, and an allocation that fails ends the process. So
//! under such a limit all arenas together take an eighth of the address space.
//!
//! Stacks and mappings take address space, too. A program that knows the need of the buffers
//! reserves that ([`reserve_heap`]). The end of the main arena is then mapped before there are
//! clients, and is never returned. Allocations that don't fit into another arena come from there.

use std::collections::VecDeque;
use std::io;
use std::sync::OnceLock;

use corewise_export::MemoryPool;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::{Mutex, Unparker};

use crate::wire::MAX_PAYLOAD;

/// Bytes that a connection takes beside those of its requests. They are for its two receive
/// buffers, 256 requests and their replies, the memory of 32 replies that is used again, and the
/// touched part of two stacks.
const FIXED: u64 = 896 << 10;
/// Bytes that TLS adds to a connection, from its handshake on: ciphertext of both directions, a
/// record between, keys.
const TLS: u64 = 192 << 10;
/// Bytes that a handshake takes.
const HALF_OPEN: u64 = 64 << 10;
/// The smallest and the largest share of a connection, in bytes.
const SHARE: (u64, u64) = (64 << 10, 1 << 20);

/// The division of a server's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Bytes that all connections share.
    pub pool: u64,
    /// Bytes that each connection has for itself.
    pub share: u64,
    /// Bytes that all of it takes if every place is taken and every client does its worst.
    pub worst: u64,
}

/// Divides `memory` bytes among `connections` connections and `half_open` handshakes, with TLS if
/// `tls` is true.
///
/// At most half goes to the shares, and the pool always holds a largest request. So if there is
/// little memory for many places, the total exceeds `memory`; `worst` is that total.
pub fn split(memory: u64, connections: usize, half_open: usize, tls: bool) -> Split {
    let connections = (connections as u64).max(1);
    let fixed_each = fixed(tls);
    let shaking = (half_open as u64).saturating_mul(HALF_OPEN + fixed_each - FIXED);
    let each = (memory.saturating_sub(shaking) / 2 / connections).saturating_sub(fixed_each);
    let share = each.clamp(SHARE.0, SHARE.1);
    let fixed = (share + fixed_each).saturating_mul(connections).saturating_add(shaking);
    let pool = memory.saturating_sub(fixed).max(MAX_PAYLOAD.into());
    Split { pool, share, worst: pool.saturating_add(fixed) }
}

fn fixed(tls: bool) -> u64 {
    FIXED + if tls { TLS } else { 0 }
}

/// Returns the number of connections that `memory` bytes have room for if each has the smallest
/// share.
pub fn places(memory: u64, tls: bool) -> usize {
    usize::try_from(memory / 2 / (SHARE.0 + fixed(tls))).unwrap_or(usize::MAX).max(1)
}

/// The memory that the clients of a server share, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Bytes that requests have taken.
    pub taken: u64,
    /// Bytes in all.
    pub of: u64,
    /// Clients whose next request waits for memory.
    pub waiting: usize,
}

/// Clients of other front ends take from the pool as connections do, and wait for nothing.
impl MemoryPool for Pool {
    fn try_take(&self, bytes: u64) -> bool {
        Pool::try_take(self, bytes)
    }

    fn give_back(&self, bytes: u64) {
        Pool::give_back(self, bytes);
    }
}

/// The memory that all connections of a server share.
#[derive(Debug)]
pub struct Pool {
    bytes: u64,
    /// L: is the lock; guards the free bytes and the queue. A leaf: inside it threads are woken,
    /// and nothing else is locked.
    state: Mutex<PoolState>,
    freed: Freed,
}

#[derive(Debug)]
struct PoolState {
    free: u64,
    /// Waiters in the order in which they came. The first one needs more than is free.
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    bytes: u64,
    unparker: Unparker,
}

impl Pool {
    /// Creates a pool of `bytes` free bytes.
    pub fn new(bytes: u64) -> Pool {
        let state = Mutex::new(PoolState { free: bytes, queue: VecDeque::new() });
        Pool { bytes, state, freed: Freed::new() }
    }

    /// Returns the bytes that a request takes: all of the pool if it is larger than that.
    fn clamp(&self, bytes: u64) -> u64 {
        bytes.min(self.bytes)
    }

    /// Queues for `bytes`, under an id that is in the queue at most once. The thread is woken once
    /// the bytes were taken for it, which may have happened when this returns.
    pub fn queue(&self, bytes: u64, id: u64, unparker: &Unparker) {
        let bytes = self.clamp(bytes);
        let mut state = self.state.lock();
        state.queue.push_back(Waiter { id, bytes, unparker: unparker.clone() });
        state.serve();
    }

    /// Takes `bytes` if they are free and the queue is empty.
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> bool {
        let bytes = self.clamp(bytes);
        let mut state = self.state.lock();
        // Waiters go first, or large requests would wait forever.
        let there = state.queue.is_empty() && state.free >= bytes;
        if there {
            state.free -= bytes;
        }
        there
    }

    /// Returns true if the waiter has its bytes.
    pub fn has(&self, id: u64) -> bool {
        self.state.lock().queue.iter().all(|waiter| waiter.id != id)
    }

    /// Leaves the queue, and returns bytes that were taken meanwhile.
    pub fn give_up(&self, bytes: u64, id: u64) {
        let mut state = self.state.lock();
        match state.queue.iter().position(|waiter| waiter.id == id) {
            Some(at) => drop(state.queue.remove(at)),
            None => state.free += self.clamp(bytes),
        }
        state.serve();
    }

    /// Returns the bytes that one [`Pool::try_take`] took. Any context; never blocks for longer
    /// than a few instructions.
    pub fn give_back(&self, bytes: u64) {
        self.freed.add(bytes);
        let mut state = self.state.lock();
        state.free += self.clamp(bytes);
        debug_assert!(state.free <= self.bytes, "more given back than was taken");
        state.serve();
    }

    /// Returns the freed memory of a client with this share to the system, as far as that pays.
    /// Called on the thread that served it, when all of it is freed. Blocks for milliseconds at
    /// most.
    pub fn client_left(&self, share: u64) {
        self.freed.add(FIXED + share);
        self.freed.give_to_system();
    }

    /// Returns the bytes taken, and the number of waiters.
    pub fn usage(&self) -> MemoryUse {
        let state = self.state.lock();
        MemoryUse { taken: self.bytes - state.free, of: self.bytes, waiting: state.queue.len() }
    }
}

impl PoolState {
    fn serve(&mut self) {
        while let Some(first) = self.queue.front() {
            if first.bytes > self.free {
                return;
            }
            self.free -= first.bytes;
            first.unparker.unpark();
            self.queue.pop_front();
        }
    }
}

/// Least number of freed bytes after which the heap is trimmed.
const WORTH: u64 = 16 << 20;

/// Set once the heap has bytes that are never returned, before there are clients.
static RESERVED: OnceLock<()> = OnceLock::new();

/// Limits the address space of the C library's heap, as [`Server::new`](crate::Server::new) does,
/// for a program that starts threads before it has a server.
pub fn limit_heap() {
    heap::set_thresholds();
}

/// Maps `bytes` bytes for the heap, for a program whose address space is limited. Called on the
/// main thread, before there are clients. Does nothing if the C library isn't glibc.
///
/// # Errors
/// `OutOfMemory`: the limits of the process don't leave that much.
pub fn reserve_heap(bytes: u64) -> io::Result<()> {
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let _ = RESERVED.set(());
    heap::reserve(bytes)
}

fn is_reserved() -> bool {
    RESERVED.get().is_some()
}

/// A count of the freed bytes.
#[derive(Debug)]
pub(crate) struct Freed {
    /// A: bytes that were freed since the heap was last trimmed. Relaxed: a count.
    bytes: AtomicU64,
    /// L: is the lock; one thread at a time changes the heap's threshold. A leaf.
    heap: Mutex<()>,
}

impl Freed {
    pub(crate) fn new() -> Freed {
        heap::set_thresholds();
        Freed { bytes: AtomicU64::new(0), heap: Mutex::new(()) }
    }

    /// Counts freed bytes. Any context.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns free memory to the system, as far as that pays. Called on the thread of a client
    /// that leaves, when it has freed everything. May take milliseconds.
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

    use crate::memory::is_reserved;

    const M_TRIM_THRESHOLD: c_int = -1;
    const M_MMAP_THRESHOLD: c_int = -3;
    const M_MMAP_MAX: c_int = -4;
    const M_ARENA_MAX: c_int = -8;
    /// Largest number of allocations with a mapping of their own: the C library's number.
    const MAPPINGS: c_int = 65_536;
    /// Address space that an arena reserves, in bytes.
    const ARENA: u64 = 64 << 20;
    /// Largest possible threshold of `mmap`. No request's buffer gets a mapping of its own, which
    /// would fault in its pages each time.
    const MMAP: c_int = 32 << 20;
    /// Bytes that an arena keeps at its end for the next requests.
    const TOP: c_int = 16 << 20;
    /// Threshold that keeps the end of every arena.
    const KEEP: c_int = -1;
    /// Least size of a free that checks its arena's end.
    const LOOKS: usize = 128 << 10;

    unsafe extern "C" {
        /// Calls `malloc_trim(3)`.
        safe fn malloc_trim(pad: usize) -> c_int;
        /// Calls `mallopt(3)`.
        safe fn mallopt(param: c_int, value: c_int) -> c_int;
    }

    pub(super) fn set_thresholds() {
        mallopt(M_MMAP_THRESHOLD, MMAP);
        mallopt(M_TRIM_THRESHOLD, if is_reserved() { KEEP } else { TOP });
        if let Some(space) = getrlimit(Resource::As).current {
            mallopt(M_ARENA_MAX, arenas(space));
        }
    }

    /// Maps `bytes` bytes at the end of this thread's arena.
    pub(super) fn reserve(bytes: usize) -> io::Result<()> {
        mallopt(M_TRIM_THRESHOLD, KEEP);
        let layout = Layout::from_size_align(bytes.max(1), 1).map_err(io::Error::other)?;
        // An allocation with a mapping of its own would return that.
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

    /// Returns the number of arenas that an address space of `space` bytes has room for.
    fn arenas(space: u64) -> c_int {
        (space / 8 / ARENA).clamp(1, 1024) as c_int
    }

    /// Returns the end of this thread's arena to the system.
    pub(super) fn cut_top() {
        mallopt(M_TRIM_THRESHOLD, 0);
        drop(black_box(Vec::<u8>::with_capacity(LOOKS)));
        mallopt(M_TRIM_THRESHOLD, TOP);
    }

    pub(super) fn trim() {
        // Bytes that stay at the end of the main arena.
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

/// Other allocators return memory by themselves, or have no function for it.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod heap {
    pub(super) fn set_thresholds() {}
    pub(super) fn cut_top() {}
    pub(super) fn trim() {}
    pub(super) fn reserve(_: usize) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use corewise_sync::Parker;

    use super::*;

    fn usage(pool: &Pool) -> (u64, usize) {
        (pool.usage().taken, pool.usage().waiting)
    }

    #[test]
    fn any_numbers_are_split() {
        let most = split(u64::MAX, usize::MAX, usize::MAX, true);
        assert_eq!((most.worst, most.share), (u64::MAX, SHARE.0));
        let least = split(0, 0, 0, false);
        assert_eq!((least.pool, least.share), (MAX_PAYLOAD.into(), SHARE.0));
    }

    #[test]
    fn those_that_wait_are_served_in_their_order_and_nobody_passes_them() {
        let pool = Pool::new(100);
        let parkers = [Parker::new(), Parker::new()];
        assert!(pool.try_take(80));
        pool.queue(90, 1, &parkers[0].unparker());
        assert!(!pool.has(1), "10 short");
        assert!(!pool.try_take(10), "there is room, but somebody came first");
        pool.queue(10, 2, &parkers[1].unparker());
        assert_eq!(usage(&pool), (80, 2));
        pool.give_back(80);
        assert!(pool.has(1) && parkers[0].try_park());
        assert!(pool.has(2) && parkers[1].try_park(), "what is left is enough for the second");
        assert_eq!(usage(&pool), (100, 0));
    }

    #[test]
    fn a_request_larger_than_the_pool_is_served_alone() {
        let (pool, parker) = (Pool::new(100), Parker::new());
        assert!(pool.try_take(1));
        pool.queue(500, 1, &parker.unparker());
        assert!(!pool.has(1));
        pool.give_back(1);
        assert!(pool.has(1));
        assert_eq!(usage(&pool), (100, 0));
        pool.give_back(500);
        assert_eq!(usage(&pool), (0, 0));
    }

    #[test]
    fn one_that_leaves_the_line_makes_room_whether_it_was_served_or_not() {
        let (pool, parker) = (Pool::new(100), Parker::new());
        let wake = parker.unparker();
        assert!(pool.try_take(100));
        pool.queue(100, 1, &wake);
        pool.queue(50, 2, &wake);
        pool.give_back(100);
        assert!(pool.has(1) && !pool.has(2));
        pool.give_up(100, 1);
        assert!(pool.has(2), "what the first had been given is passed on");
        pool.queue(60, 3, &wake);
        pool.queue(10, 4, &wake);
        assert!(!pool.has(4));
        pool.give_up(60, 3);
        assert!(pool.has(4), "the one behind it waited for its order only");
        assert_eq!(usage(&pool), (60, 0));
    }

    #[test]
    fn memory_is_split_so_that_every_connection_has_a_share_and_the_worst_case_is_said() {
        let large = split(4 << 30, 1024, 256, false);
        assert_eq!(large.share, 1 << 20);
        assert_eq!(large.worst, 4 << 30, "all of it is counted");
        let small = split(64 << 20, 1024, 256, false);
        assert_eq!((small.share, small.pool), (64 << 10, 32 << 20));
        assert!(small.worst > 64 << 20, "more than was asked for, and it is said");
        for tls in [false, true] {
            let fits = split(128 << 20, places(128 << 20, tls), 0, tls);
            assert_eq!(fits.worst, 128 << 20);
        }
        assert!(places(128 << 20, true) < places(128 << 20, false));
    }
}
