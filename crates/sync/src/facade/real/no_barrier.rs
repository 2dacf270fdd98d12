//! No barrier that other threads don't take part in: both sides of asymmetric fences are full ones.

pub(crate) const WAITS: bool = false;

pub(crate) fn register() -> bool {
    false
}

pub(crate) fn everywhere() -> bool {
    false
}
