//! One import path for the primitives that loom replaces.

/// Atomic types, [`Ordering`](std::sync::atomic::Ordering) and fences: the standard library's, or
/// loom's under `--cfg loom`.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
    };
    #[cfg(not(loom))]
    pub use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
    };
    pub use std::sync::atomic::{Ordering, compiler_fence};
}

/// An `UnsafeCell` with loom's closure-scoped access, so that loom sees each access begin and end.
pub mod cell {
    #[cfg(loom)]
    pub use loom::cell::UnsafeCell;

    /// A `std::cell::UnsafeCell` reached through closures, as loom's is.
    #[cfg(not(loom))]
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    #[cfg(not(loom))]
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
}

/// Threads: the standard library's, or loom's.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::{JoinHandle, ThreadId, current, spawn, yield_now};
    #[cfg(not(loom))]
    pub use std::thread::{Builder, JoinHandle, ThreadId, current, spawn, yield_now};
}

/// Spin hints: the standard library's, or loom's (which yields to the model).
pub mod hint {
    #[cfg(loom)]
    pub use loom::hint::spin_loop;
    #[cfg(not(loom))]
    pub use std::hint::spin_loop;
}
