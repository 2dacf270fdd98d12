//! A pointer that is replaced as a whole, under a lock: a checker can't see into hazard pointers.

use std::ops::Deref;
use std::sync::Arc;

use crate::facade::lock::Mutex;

/// As in `word/swap.rs`.
pub struct Swap<T> {
    /// L: is the lock; guards the pointer.
    value: Mutex<Arc<T>>,
}

impl<T> Swap<T> {
    /// With this value.
    pub fn new(value: Arc<T>) -> Self {
        Swap { value: Mutex::new(value) }
    }

    /// The value of this moment.
    pub fn load(&self) -> impl Deref<Target = Arc<T>> {
        Holder(Arc::clone(&self.value.lock()))
    }

    /// Replaces the value. The old one is dropped outside the lock.
    pub fn store(&self, value: Arc<T>) {
        let old = std::mem::replace(&mut *self.value.lock(), value);
        drop(old);
    }
}

/// Derefs to the pointer.
struct Holder<T>(Arc<T>);

impl<T> Deref for Holder<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}
