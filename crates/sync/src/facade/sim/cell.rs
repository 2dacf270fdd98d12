//! A cell whose accesses are charged for.

use corewise_sim::{Access, touch};

/// Bytes of a cell that an access is charged for at most: large values are seldom touched as a whole.
const MOST: usize = 64;

/// An `UnsafeCell` for the simulator.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T: ?Sized>(
    /// P: as the holder of the cell says.
    std::cell::UnsafeCell<T>,
);

impl<T> UnsafeCell<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with a pointer for reading.
    #[track_caller]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        self.charge(Access::Load);
        f(self.0.get())
    }

    /// Calls `f` with a pointer for writing.
    #[track_caller]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.charge(Access::Store);
        f(self.0.get())
    }

    /// Gives the value back.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    #[track_caller]
    fn charge(&self, kind: Access) {
        if size_of::<T>() > 0 {
            touch(self.0.get().addr(), size_of::<T>().min(MOST), kind);
        }
    }
}
