//! A place for one value that one thread leaves and another takes out.
//!
//! The slot has no state of its own: who may touch it when is decided by whatever event stands
//! beside it (the push of the message, the completion of the call), and argued at each use.

use corewise_sync::cell::UnsafeCell;

pub(crate) struct Slot<T> {
    /// P: first the one who fills it, then, by the event beside it, the one who empties it.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the slot hands a `T` from one thread to another (T: Send) and never gives two threads
// access to it at once: that is the contract of `take`.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T> Slot<T> {
    pub(crate) fn full(value: T) -> Self {
        Slot { value: UnsafeCell::new(Some(value)) }
    }

    /// Takes the value out; `None` where there is none (any more).
    ///
    /// # Safety
    /// Nobody else touches the slot meanwhile: the last touch happens before this, and
    /// the next one happens after.
    pub(crate) unsafe fn take(&self) -> Option<T> {
        // SAFETY: the caller has the slot to itself.
        self.value.with_mut(|slot| unsafe { (*slot).take() })
    }
}
