//! A cell that is read all the time and written now and then.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;

use super::{Epochs, Section};
use crate::atomic::{AtomicPtr, Ordering};
use crate::context;
use crate::fence::{Asymmetric, AsymmetricPolicy};

/// A value that is read for a few nanoseconds' price, by any number of threads that don't slow each other
/// down, and replaced as a whole by writers who pay: they wait until nobody reads the old one.
///
/// ```
/// use corewise_sync::epoch::ReadMostly;
///
/// let route = ReadMostly::new(String::from("north"));
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert!(["north", "south"].contains(&route.read().as_str())));
///     assert_eq!(route.replace("south".into()), "north");
/// });
/// route.update(|route| format!("{route}-east"));
/// assert_eq!(*route.read(), "south-east");
/// ```
pub struct ReadMostly<T, A: AsymmetricPolicy = Asymmetric> {
    /// A: the value, in a box of its own. Swapped by writers with AcqRel: who reads the pointer reads what
    /// was written before. An old box belongs to the thread that swapped it out, after a grace period.
    value: AtomicPtr<T>,
    epochs: Epochs<A>,
    owns: PhantomData<Box<T>>,
}

// SAFETY: it hands out shared references (T: Sync), and moves values from writer to writer and to the thread that drops
// it (T: Send).
unsafe impl<T: Send + Sync, A: AsymmetricPolicy> Sync for ReadMostly<T, A> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, A: AsymmetricPolicy> Send for ReadMostly<T, A> {}

impl<T> ReadMostly<T> {
    /// A cell with epochs of its own.
    pub fn new(value: T) -> Self {
        Self::with_epochs(Epochs::new(), value)
    }
}

impl<T, A: AsymmetricPolicy> ReadMostly<T, A> {
    /// A cell in epochs that are shared: its writers wait for all readers in them, and a section of
    /// theirs holds off its writers. Worth it for many cells, each of which would have a slot for each thread.
    pub fn with_epochs(epochs: Epochs<A>, value: T) -> Self {
        let value = AtomicPtr::new(Box::into_raw(Box::new(value)));
        ReadMostly { value, epochs, owns: PhantomData }
    }

    /// Its epochs.
    pub fn epochs(&self) -> &Epochs<A> {
        &self.epochs
    }

    /// The value of this moment, for as long as the guard lives. Keep that short, and **don't block** meanwhile:
    /// the guard is an [open section](Epochs::enter). Any context.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> ReadGuard<'_, T, A> {
        let section = self.epochs.enter();
        // Acquire: pairs with the swap of the writer whose value it is.
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: read in a section: who swaps this box out waits for its end before it touches the box
        // again.
        ReadGuard { value: unsafe { &*value }, _section: section }
    }

    /// Puts a new value in place, and gives the old one back when nobody reads it any more. A reader after it
    /// returned reads the new one. May block, as [`Epochs::synchronize`].
    ///
    /// # Panics
    /// While the calling thread reads, in these epochs: before anything is changed.
    #[track_caller]
    pub fn replace(&self, value: T) -> T {
        context::might_block("ReadMostly::replace");
        self.epochs.refuse_inside("replace");
        let new = Box::into_raw(Box::new(value));
        *self.after_grace(self.value.swap(new, Ordering::AcqRel))
    }

    /// Puts in place what `f` makes of the value. `f` is called in a reading section of the calling thread, and called
    /// again where another writer came between; the old value is dropped on this thread before it returns.
    /// May block, as [`Epochs::synchronize`].
    ///
    /// # Panics
    /// As [`ReadMostly::replace`]; and with what `f` panics with: then nothing was changed.
    #[track_caller]
    pub fn update(&self, mut f: impl FnMut(&T) -> T) {
        context::might_block("ReadMostly::update");
        self.epochs.refuse_inside("update");
        loop {
            let read = self.read();
            let old = ptr::from_ref(read.value).cast_mut();
            let new = Box::new(f(&read));
            let new = Box::into_raw(new);
            // Inside the section: so `old` can't be another box at the same address.
            let done = self.value.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
            drop(read);
            match done {
                Ok(old) => return drop(self.after_grace(old)),
                // SAFETY: it was made a moment ago, and published to nobody.
                Err(_) => drop(unsafe { Box::from_raw(new) }),
            }
        }
    }

    /// The box that was just swapped out, when nobody reads it.
    #[track_caller]
    fn after_grace(&self, old: *mut T) -> Box<T> {
        self.epochs.synchronize();
        // SAFETY: it came from a box, was unpublished by the one swap that returned it, and each section
        // that may have read it has ended.
        unsafe { Box::from_raw(old) }
    }
}

impl<T, A: AsymmetricPolicy> Drop for ReadMostly<T, A> {
    fn drop(&mut self) {
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: a guard borrows the cell, so there is none, nor a writer; the box is the cell's.
        drop(unsafe { Box::from_raw(value) });
    }
}

impl<T: fmt::Debug, A: AsymmetricPolicy> fmt::Debug for ReadMostly<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadMostly").field(&*self.read()).finish()
    }
}

/// A value that is being read. Dropped on the thread that read it.
#[must_use = "the value may change as soon as the guard is dropped"]
pub struct ReadGuard<'a, T, A: AsymmetricPolicy = Asymmetric> {
    value: &'a T,
    _section: Section<'a, A>,
}

impl<T, A: AsymmetricPolicy> Deref for ReadGuard<'_, T, A> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T: fmt::Debug, A: AsymmetricPolicy> fmt::Debug for ReadGuard<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
