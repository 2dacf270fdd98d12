//! Waiting for what no event tells.

/// Yields until `done`.
pub(crate) fn spin_until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}
