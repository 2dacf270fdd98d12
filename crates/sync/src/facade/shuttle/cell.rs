//! A cell that reports accesses that overlap: shuttle has none of its own.

use std::cell::Cell;
use std::time::Duration;

use crate::facade::thread;

/// An `UnsafeCell` for shuttle: another thread may be scheduled in the middle of each access,
/// and one that then touches the cell against the rules panics.
#[derive(Debug, Default)]
pub struct UnsafeCell<T> {
    value: std::cell::UnsafeCell<T>,
    /// O: the model's one OS thread: readers inside, or -1 for a writer.
    inside: Cell<isize>,
}

// As with the standard cell, code that shares it argues for its own `Sync`.

impl<T> UnsafeCell<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        UnsafeCell { value: std::cell::UnsafeCell::new(value), inside: Cell::new(0) }
    }

    /// Calls `f` with a pointer for reading; panics where somebody writes.
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        assert!(self.inside.get() >= 0, "read while another thread writes");
        self.inside.set(self.inside.get() + 1);
        thread::sleep(Duration::ZERO); // a scheduling point, and no more
        let result = f(self.value.get());
        self.inside.set(self.inside.get() - 1);
        result
    }

    /// Calls `f` with a pointer for writing; panics where somebody reads or writes.
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        assert!(self.inside.get() == 0, "written while another thread reads or writes");
        self.inside.set(-1);
        thread::sleep(Duration::ZERO); // a scheduling point, and no more
        let result = f(self.value.get());
        self.inside.set(0);
        result
    }

    /// Gives the value back.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}
