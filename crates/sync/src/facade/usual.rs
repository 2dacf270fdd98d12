//! What all backends but loom have in common.

/// See [`hint::EVERY_SCHEDULE`](crate::hint::EVERY_SCHEDULE).
pub(crate) const EVERY_SCHEDULE: bool = false;
/// Whether `SeqCst` accesses are taken for weaker ones than they are.
pub(crate) const SEQ_CST_IS_WEAK: bool = false;

/// A `const fn`.
macro_rules! constructor {
    ($(#[$attribute:meta])* $visible:vis fn $($rest:tt)*) => {
        $(#[$attribute])* $visible const fn $($rest)*
    };
}
pub(crate) use constructor;

/// Nobody looks.
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

/// No fence is missing.
pub(crate) mod weakened {}
