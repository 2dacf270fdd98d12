//! Plain memory that is only right if the calls order its accesses.

use corewise_sync::cell::UnsafeCell;

/// A word without any ordering of its own: what a caller writes before a call and a handler reads,
/// or the other way round.
pub(super) struct Plain {
    /// P: the thread whose turn it is, by the order that calls and waits give. The torture tests
    /// this order.
    word: UnsafeCell<u64>,
}

// SAFETY: this isn't sound by itself: the torture touches it in turns that only the calls order. If
// they don't, it is a race, and a check reports that.
unsafe impl Sync for Plain {}

impl Plain {
    pub(super) fn new() -> Plain {
        Plain { word: UnsafeCell::new(0) }
    }

    pub(super) fn set(&self, word: u64) {
        // SAFETY: the pointer is to a living word; for the turns see above. Volatile, so that it is
        // written here and not when it suits the compiler.
        self.word.with_mut(|at| unsafe { at.write_volatile(word) });
    }

    pub(super) fn get(&self) -> u64 {
        // SAFETY: as in `set`.
        self.word.with(|at| unsafe { at.read_volatile() })
    }
}
