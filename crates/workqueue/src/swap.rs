//! A pointer that is read by everybody who queues, and replaced as a whole now and then.

use std::ops::Deref;
use std::sync::Arc;

#[cfg(any(loom, shuttle))]
use corewise_sync::Mutex;

/// A shared value that is replaced as a whole. Reading it writes to no line that other CPUs use
/// (under loom and shuttle, which can't see into `arc_swap`, it is a lock).
pub(crate) struct Swap<T> {
    #[cfg(not(any(loom, shuttle)))]
    value: arc_swap::ArcSwap<T>,
    /// L: is the lock; guards the pointer.
    #[cfg(any(loom, shuttle))]
    value: Mutex<Arc<T>>,
}

impl<T> Swap<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        #[cfg(not(any(loom, shuttle)))]
        let value = arc_swap::ArcSwap::new(value);
        #[cfg(any(loom, shuttle))]
        let value = Mutex::new(value);
        Swap { value }
    }

    /// The value of this moment. Whoever replaces it doesn't wait for readers: the value lives for
    /// as long as it is read. Never blocks.
    #[inline]
    pub(crate) fn load(&self) -> impl Deref<Target = Arc<T>> {
        #[cfg(not(any(loom, shuttle)))]
        return self.value.load();
        #[cfg(any(loom, shuttle))]
        return Holder(Arc::clone(&self.value.lock()));
    }

    /// Replaces the value; readers that come later see the new one.
    pub(crate) fn store(&self, value: Arc<T>) {
        #[cfg(not(any(loom, shuttle)))]
        self.value.store(value);
        #[cfg(any(loom, shuttle))]
        {
            // The old value is dropped outside the lock.
            let old = std::mem::replace(&mut *self.value.lock(), value);
            drop(old);
        }
    }
}

/// Derefs to the pointer, as `arc_swap`'s guard does.
#[cfg(any(loom, shuttle))]
struct Holder<T>(Arc<T>);

#[cfg(any(loom, shuttle))]
impl<T> Deref for Holder<T> {
    type Target = Arc<T>;
    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
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
