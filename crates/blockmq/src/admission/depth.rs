//! A nested closing: how many times something is closed, in one word.
//!
//! Closed means depth > 0, so there is no second flag that could disagree. The fences behind a raise
//! and behind the last lower belong to the protocols that use it ([`crate::admission::gate`], [`crate::admission::usage`]).

use corewise_sync::atomic::{AtomicU32, Ordering};

/// How many closings are in force.
#[derive(Debug)]
pub(crate) struct Depth {
    /// A: the number. Changes are AcqRel: a thread that finds it open sees what was done while it was closed.
    number: AtomicU32,
}

impl Depth {
    pub(crate) fn new() -> Self {
        Self { number: AtomicU32::new(0) }
    }

    /// Closes one level deeper; the new depth.
    pub(crate) fn raise(&self) -> u32 {
        self.number.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Undoes one [`raise`](Self::raise) of the caller's. True: that was the last one, and it is open.
    pub(crate) fn lower(&self) -> bool {
        let was = self.number.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(was != 0, "only what was raised is lowered");
        was == 1
    }

    /// The number, a moment ago. Relaxed.
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Whether it is open, a moment ago. Acquire.
    #[inline]
    pub(crate) fn is_zero(&self) -> bool {
        self.number.load(Ordering::Acquire) == 0
    }
}
