//! A pointer that is replaced as a whole, over hazard pointers.

use std::ops::Deref;
use std::sync::Arc;

/// A shared value that is read by everybody, and replaced as a whole now and then. Reading it writes to no
/// line that other CPUs use.
pub struct Swap<T> {
    value: arc_swap::ArcSwap<T>,
}

impl<T> Swap<T> {
    /// With this value.
    pub fn new(value: Arc<T>) -> Self {
        Swap { value: arc_swap::ArcSwap::new(value) }
    }

    /// The value of this moment. A writer that replaces it doesn't wait for readers: the value lives for
    /// as long as it is read. Never blocks.
    #[inline]
    pub fn load(&self) -> impl Deref<Target = Arc<T>> {
        self.value.load()
    }

    /// Replaces the value; readers that come later see the new one.
    pub fn store(&self, value: Arc<T>) {
        self.value.store(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_lives_for_as_long_as_it_is_read() {
        let first = Arc::new(1);
        let swap = Swap::new(Arc::clone(&first));
        let reading = swap.load();
        swap.store(Arc::new(2));
        assert_eq!((**reading, **swap.load()), (1, 2));
        drop(reading);
        assert_eq!(Arc::strong_count(&first), 1);
    }
}
