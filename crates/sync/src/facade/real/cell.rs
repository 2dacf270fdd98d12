//! A cell that only looks like loom's.

/// A `std::cell::UnsafeCell` reached through closures, as loom's is.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// Wraps a value.
    #[inline]
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer for reading. Dereferencing it is the caller's unsafe step: no
    /// one may write meanwhile.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer for writing. Dereferencing it is the caller's unsafe step: no
    /// one else may touch the value meanwhile.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }

    /// Gives the value back.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}
