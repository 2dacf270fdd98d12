//! Which cells of a pool are free: a stack of indices that any thread pushes to and pops from.
//!
//! It is Treiber's stack. The head word holds the index of the first free cell and a tag that each pop
//! counts up, so that a head that was read before others popped that cell, its next, and pushed it
//! back isn't taken for the same (the ABA problem): it would make a cell that somebody has the first
//! free one. A pop that sleeps through exactly 2^32 others would be fooled.
//!
//! Cells are never unmapped while the list is open, so a pop may read the link of a cell that somebody
//! else has just taken; the exchange then fails. `tests/loom/free_list.rs`.

#![allow(unreachable_pub, reason = "only the models reach it")]

use corewise_sync::atomic::{AtomicU64, Ordering};

/// In the index half of the word: nothing is free.
const NONE: u32 = 0;
/// In the index half of the word: the list is closed.
const CLOSED: u32 = u32::MAX;

/// The stack. `STEP` is what a pop adds to the tag: 1, and 0 in the model that has to fail.
pub struct FreeList<const STEP: u32> {
    /// A: low half: the first free cell's index plus one, or `NONE` or `CLOSED`; high half: the tag.
    head: AtomicU64,
}

/// The list was closed before the push.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

fn pack(tag: u32, first: u32) -> u64 {
    u64::from(tag) << 32 | u64::from(first)
}

fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl<const STEP: u32> FreeList<STEP> {
    /// Nothing is free.
    #[allow(clippy::new_without_default, reason = "for the crate and its models alone")]
    pub fn new() -> Self {
        FreeList { head: AtomicU64::new(pack(0, NONE)) }
    }

    /// Takes a free cell: its index. `next` reads what the push of a
    /// cell wrote to its link. Lock-free.
    pub fn pop(&self, next: impl Fn(u32) -> u32) -> Option<u32> {
        // Acquire pairs with the Release of `push`: the link, and what the last user did.
        let mut now = self.head.load(Ordering::Acquire);
        loop {
            let (tag, first) = unpack(now);
            if first == NONE || first == CLOSED {
                return None;
            }
            let after = pack(tag.wrapping_add(STEP), next(first - 1));
            let (success, failure) = (Ordering::Acquire, Ordering::Acquire);
            match self.head.compare_exchange(now, after, success, failure) {
                Ok(_) => return Some(first - 1),
                Err(found) => now = found,
            }
        }
    }

    /// Puts a cell back that nobody uses any more; `link` writes its link. Lock-free.
    ///
    /// # Errors
    /// The list is closed.
    pub fn push(&self, index: u32, link: impl Fn(u32)) -> Result<(), Closed> {
        let mut now = self.head.load(Ordering::Relaxed);
        loop {
            let (tag, first) = unpack(now);
            if first == CLOSED {
                return Err(Closed);
            }
            link(first);
            // Release pairs with the Acquire of `pop` and `close`. Acquire: who finds it closed comes after
            // the thread that closed it.
            match self.head.compare_exchange(
                now,
                pack(tag, index + 1),
                Ordering::Release,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(()),
                Err(found) => now = found,
            }
        }
    }

    /// Closes it, for good: how many cells are in it.
    pub(crate) fn close(&self, next: impl Fn(u32) -> u32) -> u32 {
        let (_, mut first) = unpack(self.head.swap(pack(0, CLOSED), Ordering::AcqRel));
        let mut free = 0;
        while first != NONE && first != CLOSED {
            free += 1;
            first = next(first - 1);
        }
        free
    }
}
