//! A cell that is read frequently and written rarely.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::Deref;
use std::ptr;

use super::slot::Sections;
use super::{Epochs, Section};
use crate::context;
use crate::facade::atomic::{AtomicPtr, Ordering};
use crate::facade::backend::constructor;
use crate::facade::cell::UnsafeCell;
use crate::facade::fence::{Asymmetric, AsymmetricPolicy};
use crate::facade::lock::Mutex;

/// Number of old values that may wait for the end of their readers before a writer waits, too.
const MOST_OLD: usize = 64;

/// A value that any number of threads read in a few nanoseconds, without slowing each other down,
/// and that is replaced as a whole. The writers pay.
///
/// ```
/// use corewise_sync::epoch::ReadMostly;
///
/// static ROUTE: ReadMostly<&str> = ReadMostly::new("north");
///
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert!(["north", "south"].contains(&*ROUTE.read())));
///     ROUTE.replace("south");
/// });
/// assert_eq!(ROUTE.swap("east"), "south");
/// ROUTE.update(|route| if *route == "east" { "west" } else { route });
/// assert_eq!(*ROUTE.read(), "west");
/// ```
///
/// # Old values
/// A replaced value is dropped when no thread reads it any more. A writer doesn't wait for that,
/// since a reader may have lost its CPU for milliseconds. It drops values whose readers end within
/// some microseconds, and leaves the rest to the next writer, or to the drop of the cell. A writer
/// that finds 64 old values waits for the readers of them all. To get the old value, or to wait
/// until no thread reads it any more, [swap](ReadMostly::swap).
pub struct ReadMostly<T, A: AsymmetricPolicy = Asymmetric> {
    /// A: the value, in a box of its own; null: it is `first`. Writers swap it with AcqRel: a
    /// thread that reads the pointer sees the earlier writes. An old value belongs to the thread
    /// that swapped it out, after a grace period.
    value: AtomicPtr<T>,
    /// P: the first value, read in sections while `value` is null. Null never returns, so the
    /// thread that swapped it out is the only one, and takes the value out after a grace period.
    first: UnsafeCell<Option<T>>,
    /// L: is the lock; guards the old values that may still have readers.
    old: Mutex<Vec<Retired<T>>>,
    epochs: Epochs<A>,
    owns: PhantomData<Box<T>>,
}

/// A value that was swapped out, and the sections that may have found it.
struct Retired<T> {
    /// The pointer that was in `value`.
    value: *mut T,
    readers: Sections,
}

// SAFETY: the value is the cell's, which hands it from writer to writer, T: Send; see below.
// Sections are Send.
unsafe impl<T: Send> Send for Retired<T> {}

// SAFETY: it hands out shared references (T: Sync), and moves values from writer to writer and to
// the thread that drops it (T: Send).
unsafe impl<T: Send + Sync, A: AsymmetricPolicy> Sync for ReadMostly<T, A> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, A: AsymmetricPolicy> Send for ReadMostly<T, A> {}

impl<T> ReadMostly<T> {
    constructor! {
        /// Creates a cell with epochs of its own. (`const`, except in builds for loom.)
        pub fn new(value: T) -> Self {
            Self::with_epochs(Epochs::new(), value)
        }
    }
}

impl<T, A: AsymmetricPolicy> ReadMostly<T, A> {
    constructor! {
        /// Creates a cell with shared epochs: its writers wait for all readers in them, and a
        /// section of any of them delays its writers. This pays for many cells, each of which would
        /// have a slot for each thread.
        pub fn with_epochs(epochs: Epochs<A>, value: T) -> Self {
            ReadMostly {
                value: AtomicPtr::new(ptr::null_mut()),
                first: UnsafeCell::new(Some(value)),
                old: Mutex::new(Vec::new()),
                epochs,
                owns: PhantomData,
            }
        }
    }

    /// Returns its epochs.
    pub fn epochs(&self) -> &Epochs<A> {
        &self.epochs
    }

    /// Returns the present value, for as long as the guard lives. Keep that short, and **don't
    /// block** meanwhile: the guard is an [open section](Epochs::enter). Any context.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> ReadGuard<'_, T, A> {
        let section = self.epochs.enter();
        // Acquire: pairs with the swap of the writer of the value.
        let found = self.value.load(Ordering::Acquire);
        // SAFETY: found in a section, which the guard has: a writer that swaps it out waits for its
        // end before it touches the value again.
        ReadGuard { value: unsafe { self.at(found) }, found, _section: section }
    }

    /// Returns the value that was `found`.
    ///
    /// # Safety
    /// The value isn't taken away while the reference is used.
    #[inline]
    unsafe fn at(&self, found: *mut T) -> &T {
        if !found.is_null() {
            // SAFETY: it came from a box, which exists, as the caller says.
            return unsafe { &*found };
        }
        // SAFETY: no thread writes to it, as the caller says.
        self.first.with(|first| unsafe { &*first }.as_ref()).expect(THERE)
    }

    /// Replaces the value. A read that begins after this returned gets the new value. Present
    /// readers of the old one continue, and [the cell](ReadMostly) says when it is dropped. Costs
    /// one [heavy fence](crate::fence::heavy), and a load for each thread that has ever read. May
    /// block: inside an atomic section that is reported.
    #[track_caller]
    pub fn replace(&self, value: T) {
        context::might_block("ReadMostly::replace");
        self.retire(self.put(value));
    }

    /// Replaces the value like [`ReadMostly::replace`], and returns the old one when no thread
    /// reads it any more: it waits for that as [`Epochs::synchronize`] does.
    ///
    /// # Panics
    /// If the calling thread reads in these epochs. Nothing is changed then.
    #[track_caller]
    pub fn swap(&self, value: T) -> T {
        context::might_block("ReadMostly::swap");
        self.epochs.refuse_inside("swap");
        let old = self.put(value);
        self.epochs.sections().wait::<A>();
        // SAFETY: it was swapped out above, and each section that may have found it has ended.
        unsafe { self.take(old) }
    }

    /// Replaces the value by the result of `f` for it, like [`ReadMostly::replace`]. `f` is called
    /// in a reading section of the calling thread, and called again if another writer was faster.
    ///
    /// # Panics
    /// If `f` panics, with its payload. Nothing is changed then.
    #[track_caller]
    pub fn update(&self, mut f: impl FnMut(&T) -> T) {
        context::might_block("ReadMostly::update");
        loop {
            let read = self.read();
            let new = Box::new(f(&read));
            let (old, new) = (read.found, Box::into_raw(new));
            // Inside the section, so that `old` can't be another box at the same address.
            let done = self.value.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
            drop(read);
            match done {
                Ok(old) => return self.retire(old),
                // SAFETY: it was made a moment ago, and is not published.
                Err(_) => drop(unsafe { Box::from_raw(new) }),
            }
        }
    }

    /// Swaps a value in. Returns the old one, which the caller retires or takes.
    fn put(&self, value: T) -> *mut T {
        self.value.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel)
    }

    /// Drops the value that was just swapped out, and earlier ones, or leaves them to others.
    fn retire(&self, value: *mut T) {
        let mut readers = self.epochs.sections();
        readers.are_soon_over();
        let over = {
            let mut old = self.old.lock();
            old.push(Retired { value, readers });
            if old.len() > MOST_OLD && !self.epochs.is_inside() {
                mem::take(&mut *old)
            } else {
                let all = mem::take(&mut *old).into_iter();
                let (over, read): (Vec<_>, Vec<_>) = all.partition(|old| old.readers.are_over());
                *old = read;
                over
            }
        };
        // Outside the lock: their destructors are user code.
        for Retired { value, readers } in over {
            readers.wait::<A>();
            // SAFETY: it was swapped out, by the thread that retired it, and each section that may
            // have found it has ended.
            drop(unsafe { self.take(value) });
        }
    }

    /// Takes the value that was swapped out.
    ///
    /// # Safety
    /// The value is the caller's alone: it was swapped out, no thread reads it any more, and no
    /// other thread takes it.
    unsafe fn take(&self, value: *mut T) -> T {
        if value.is_null() {
            // SAFETY: as the caller says; and no later thread finds null.
            self.first.with_mut(|first| unsafe { &mut *first }.take()).expect(THERE)
        } else {
            // SAFETY: it came from a box; as the caller says.
            *unsafe { Box::from_raw(value) }
        }
    }
}

/// Message of the expectations above.
const THERE: &str = "the first value is there until it was swapped out";

impl<T, A: AsymmetricPolicy> Drop for ReadMostly<T, A> {
    fn drop(&mut self) {
        let now = self.value.load(Ordering::Acquire);
        let old = mem::take(self.old.get_mut());
        for value in old.into_iter().map(|old| old.value).chain([now]) {
            // SAFETY: a guard borrows the cell, so there is none, nor a writer: all values are the
            // cell's, and each is named once.
            drop(unsafe { self.take(value) });
        }
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
    /// The pointer that was found: null for the first value.
    found: *mut T,
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
