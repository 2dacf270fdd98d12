//! The memory of requests: one budget for the whole server.
//!
//! Each connection has a share of its own, which nobody can take from it; what goes beyond it comes from a [`Pool`] that all
//! share, first come, first served. A request takes all it needs in one step, or waits and has nothing of it.
//!
//! Steps, races and proof: `README.md` beside this file. Model: `tests/loom/memory.rs`.

mod trim;

pub use trim::{limit_heap, reserve_heap};

use std::collections::VecDeque;

use corewise_sync::{Mutex, Unparker};

use crate::wire::MAX_PAYLOAD;

/// What a connection costs beside the bytes of its requests, in bytes: the two buffers that it receives into, 256 requests and
/// their replies, the memory of 32 replies that is used again, and what its two threads touch of their stacks.
const FIXED: u64 = 896 << 10;
/// What TLS costs a connection beside, from its handshake on: ciphertext of both directions, a record between, keys.
const TLS: u64 = 192 << 10;
/// What a handshake costs, in bytes.
const HALF_OPEN: u64 = 64 << 10;
/// The smallest and the largest share of a connection, in bytes.
const SHARE: (u64, u64) = (64 << 10, 1 << 20);

/// How a server's memory is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// What all connections share, in bytes.
    pub pool: u64,
    /// What each connection has for itself, in bytes.
    pub share: u64,
    /// What all of it comes to where every place is taken and every client does its worst, in bytes.
    pub worst: u64,
}

/// Splits `memory` bytes among so many connections, with so many more in their handshake; `tls`: with TLS.
///
/// At most half goes to the shares, and the pool always holds a largest request. So a little memory with many
/// places comes to more than was asked for; `worst` says how much.
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

/// How many connections `memory` bytes have room for, where each has the smallest share.
pub fn places(memory: u64, tls: bool) -> usize {
    usize::try_from(memory / 2 / (SHARE.0 + fixed(tls))).unwrap_or(usize::MAX).max(1)
}

/// The memory that the clients of a server share, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Bytes that requests have taken.
    pub taken: u64,
    /// Bytes that there are.
    pub of: u64,
    /// Clients whose next request waits for some.
    pub waiting: usize,
}

/// What all connections of a server share.
#[derive(Debug)]
pub struct Pool {
    bytes: u64,
    /// L: is the lock; guards what is free and the line. A leaf: inside it threads are woken, and nothing else is
    /// locked.
    state: Mutex<State>,
    freed: trim::Freed,
}

#[derive(Debug)]
struct State {
    free: u64,
    /// Those that wait, in the order in which they came. Where there are any, the first one needs more than is free.
    line: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    bytes: u64,
    unparker: Unparker,
}

impl Pool {
    /// A pool of so many bytes, all of them free.
    pub fn new(bytes: u64) -> Pool {
        let state = Mutex::new(State { free: bytes, line: VecDeque::new() });
        Pool { bytes, state, freed: trim::Freed::new() }
    }

    /// What a request of `bytes` takes: all of the pool where it is larger than that.
    fn clamp(&self, bytes: u64) -> u64 {
        bytes.min(self.bytes)
    }

    /// Stands in line for `bytes`, under a number of which there is one in line at a time. The thread is woken
    /// once they were taken for it; they may be by the time this returns.
    pub fn queue(&self, bytes: u64, id: u64, unparker: &Unparker) {
        let bytes = self.clamp(bytes);
        let mut state = self.state.lock();
        state.line.push_back(Waiter { id, bytes, unparker: unparker.clone() });
        state.serve();
    }

    /// Takes `bytes` if they are there and nobody waits.
    #[must_use]
    pub fn try_take(&self, bytes: u64) -> bool {
        let bytes = self.clamp(bytes);
        let mut state = self.state.lock();
        // Not past those that wait, else large requests would wait for ever.
        let there = state.line.is_empty() && state.free >= bytes;
        if there {
            state.free -= bytes;
        }
        there
    }

    /// Whether the one that waited has what it asked for.
    pub fn has(&self, id: u64) -> bool {
        self.state.lock().line.iter().all(|waiter| waiter.id != id)
    }

    /// Leaves the line, whatever has been taken meanwhile.
    pub fn give_up(&self, bytes: u64, id: u64) {
        let mut state = self.state.lock();
        match state.line.iter().position(|waiter| waiter.id == id) {
            Some(at) => drop(state.line.remove(at)),
            None => state.free += self.clamp(bytes),
        }
        state.serve();
    }

    /// Gives back what one [`Pool::take`] took. Any context; never blocks for longer than a few instructions.
    pub fn give_back(&self, bytes: u64) {
        self.freed.add(bytes);
        let mut state = self.state.lock();
        state.free += self.clamp(bytes);
        debug_assert!(state.free <= self.bytes, "more given back than was taken");
        state.serve();
    }

    /// A client has left, with a share of so many bytes: gives what it took back to the system, as far as that pays. On the
    /// thread that served it, when all of it is freed. Blocks for milliseconds at most.
    pub fn client_left(&self, share: u64) {
        self.freed.add(FIXED + share);
        self.freed.give_to_system();
    }

    /// What is taken, and how many wait.
    pub fn usage(&self) -> MemoryUse {
        let state = self.state.lock();
        MemoryUse { taken: self.bytes - state.free, of: self.bytes, waiting: state.line.len() }
    }
}

impl State {
    fn serve(&mut self) {
        while let Some(first) = self.line.front() {
            if first.bytes > self.free {
                return;
            }
            self.free -= first.bytes;
            first.unparker.unpark();
            self.line.pop_front();
        }
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
