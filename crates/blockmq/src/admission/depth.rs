//! A nested closing: how many times something is closed, in one word.
//!
//! Closed means depth > 0, so there is no second flag that could disagree. The fences behind a raise
//! and behind the last lower belong to the protocols that use it ([`crate::admission::gate`], [`crate::admission::usage`]).

use corewise_sync::atomic::{AtomicU32, Ordering};

/// What a [`Depth::lower`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Lowered {
    /// From 1 to 0: it is open.
    Open,
    /// Somebody else still keeps it closed.
    Nested,
    /// It wasn't closed. Nothing was changed.
    Underflow,
}

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

    /// Opens by one level, if it is closed at all: check and decrement are one step, so two of them
    /// can't take the number below zero.
    pub(crate) fn lower(&self) -> Lowered {
        let mut number = self.number.load(Ordering::Relaxed);
        loop {
            if number == 0 {
                return Lowered::Underflow;
            }
            match self.number.compare_exchange_weak(
                number,
                number - 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(1) => return Lowered::Open,
                Ok(_) => return Lowered::Nested,
                Err(now) => number = now,
            }
        }
    }

    /// Opens it at once. Only where nobody else raises or lowers any more.
    pub(crate) fn reset(&self) {
        self.number.store(0, Ordering::Release);
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
