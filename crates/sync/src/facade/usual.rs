//! Definitions that all backends but loom share.

/// See [`hint::EVERY_SCHEDULE`](crate::hint::EVERY_SCHEDULE).
pub(crate) const EVERY_SCHEDULE: bool = false;
/// True if `SeqCst` accesses are taken for weaker ones than they are.
pub(crate) const SEQ_CST_IS_WEAK: bool = false;

/// A `const fn`.
macro_rules! constructor {
    ($(#[$attribute:meta])* $visible:vis fn $($rest:tt)*) => {
        $(#[$attribute])* $visible const fn $($rest)*
    };
}
pub(crate) use constructor;

/// A marker that records nothing.
pub(crate) struct Witness;

impl Witness {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Witness
    }

    #[inline(always)]
    pub(crate) fn reads(&self) {}

    #[inline(always)]
    pub(crate) fn writes(&self) {}
}

/// Fences that are missing on purpose: none.
pub(crate) mod weakened {}
