//! The handles of items: one that is kept and queued again and again, and that of a closure.

pub(crate) mod join;
pub(crate) mod work;
