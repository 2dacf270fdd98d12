//! Forks: closures that a running item lets others run, and joins.
//!
//! A fork is a part of the item that makes it, and no item of its own. It lies as one pointer in a
//! ring that the worker's lane owns ([`ring`]). Joining pops it and calls it, unless a thief has
//! stolen it meanwhile. A fork that isn't stolen costs no allocation, no lock and no fence.
//!
//! `README.md` beside this file has the protocol, its steps and its argument.
//!
//! A thread that runs forks reads here how much of its stack is left.

use std::cell::Cell;

use corewise_sync::{per_thread, sys};

pub(crate) mod lane;
pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod spawn_ring;

/// Minimum of stack for an item that is taken back in need. Of a small stack it is a quarter.
pub(crate) const STACK_RESERVE: usize = 256 << 10;

/// The rest of a thread's stack, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StackLeft {
    pub(crate) left: usize,
    /// The whole size of the stack.
    pub(crate) size: usize,
}

impl StackLeft {
    pub(crate) fn is_half(self) -> bool {
        self.left >= self.size / 2
    }

    /// Returns the reserve at the end of the stack, in bytes.
    fn reserve(self) -> usize {
        STACK_RESERVE.min(self.size / 4)
    }

    pub(crate) fn is_enough(self) -> bool {
        self.left >= self.reserve()
    }
}

/// The lowest address of a thread's stack, and its size in bytes.
type Bounds = Option<(usize, usize)>;

per_thread! {
    /// The bounds, once they are known.
    static BOUNDS: Cell<Option<Bounds>> = Cell::new(None);
    /// Number of other threads that wait, each for the next, for the item on this one: in a chain
    /// of joins.
    static CHAIN: Cell<usize> = Cell::new(0);
}

/// Returns the number of other threads that wait, each for the next one's fork, for the calling
/// thread's item.
pub(crate) fn chain() -> usize {
    CHAIN.with(Cell::get)
}

/// Runs `f`, for which `chain` other threads wait.
pub(crate) fn in_chain<R>(chain: usize, f: impl FnOnce() -> R) -> R {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHAIN.with(|chain| chain.set(self.0));
        }
    }
    let _restore = Restore(CHAIN.with(|cell| cell.replace(chain)));
    f()
}

/// Returns the rest of this thread's stack; `None` if that isn't known, as on the stack of a
/// coroutine. Asks the system once a thread.
pub(crate) fn left() -> Option<StackLeft> {
    let known = BOUNDS.try_with(|known| {
        if known.get().is_none() {
            known.set(Some(sys::stack()));
        }
        known.get().flatten()
    });
    let (lowest, size) = known.ok().flatten()?;
    let here = 0_u8;
    let left = (&raw const here).addr().checked_sub(lowest)?;
    (left <= size).then_some(StackLeft { left, size })
}

/// Returns the lowest address from which the calling thread offers forks: below it too little of
/// its stack is left. Returns 0 if that isn't known.
pub(crate) fn floor() -> usize {
    let here = 0_u8;
    let floor = |stack: StackLeft| (&raw const here).addr() - stack.left + stack.reserve();
    left().map_or(0, floor)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_the_size_of_its_stack_and_what_deeper_calls_leave_of_it() {
        if !sys::KERNEL_THREADS {
            // Nobody knows.
            return;
        }
        #[inline(never)]
        fn deeper(bytes: usize) -> Option<StackLeft> {
            let room = std::hint::black_box([0_u8; 16 << 10]);
            let left = if bytes == 0 { left() } else { deeper(bytes - room.len()) };
            std::hint::black_box(&room);
            left
        }
        let thread = std::thread::Builder::new().stack_size(1 << 20);
        let known = thread.spawn(|| (left(), deeper(256 << 10))).expect("a thread").join();
        let (Some(here), Some(deep)) = known.expect("no panic") else { panic!("not known") };
        assert!((1 << 20..=2 << 20).contains(&here.size), "{here:?}");
        assert!(here.left <= here.size && here.left > here.size - (64 << 10), "{here:?}");
        assert!(deep.left + (256 << 10) <= here.left, "{deep:?} of {here:?}");
    }
}
