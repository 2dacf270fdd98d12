//! Substitute for a barrier that involves all threads: both sides of asymmetric fences are full
//! ones.

pub(crate) const WAITS: bool = false;

pub(crate) fn register() -> bool {
    false
}

pub(crate) fn everywhere() -> bool {
    false
}
