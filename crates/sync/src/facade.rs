//! One import path for the primitives that a model checker replaces.

/// Atomic types, [`Ordering`](std::sync::atomic::Ordering) and fences: the standard library's, or
/// loom's or shuttle's under `--cfg loom` or `--cfg shuttle`. Shuttle takes every ordering for
/// `SeqCst`: what depends on a weaker one is for loom to check.
pub mod atomic {
    #[cfg(loom)]
    use loom::sync::atomic as imp;
    #[cfg(shuttle)]
    use shuttle::sync::atomic as imp;
    #[cfg(not(any(loom, shuttle)))]
    use std::sync::atomic as imp;

    pub use imp::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
    };
    pub use std::sync::atomic::{Ordering, compiler_fence};
}

/// An `UnsafeCell` with loom's closure-scoped access, so that loom sees each access begin and end.
pub mod cell {
    #[cfg(loom)]
    pub use loom::cell::UnsafeCell;

    #[cfg(shuttle)]
    pub use super::watched::UnsafeCell;

    /// A `std::cell::UnsafeCell` reached through closures, as loom's is.
    #[cfg(not(any(loom, shuttle)))]
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(std::cell::UnsafeCell<T>);

    #[cfg(not(any(loom, shuttle)))]
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

/// Threads: the standard library's, loom's or shuttle's.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::{JoinHandle, ThreadId, current, spawn, yield_now};
    #[cfg(shuttle)]
    pub use shuttle::thread::{Builder, JoinHandle, ThreadId, current, spawn, yield_now};
    #[cfg(not(any(loom, shuttle)))]
    pub use std::thread::{Builder, JoinHandle, ThreadId, current, spawn, yield_now};

    #[cfg(loom)]
    #[doc(hidden)]
    pub use loom::thread_local as model_thread_local;
    #[cfg(shuttle)]
    #[doc(hidden)]
    pub use shuttle::thread_local as model_thread_local;
}

/// Declares thread-locals: `static NAME: Type = constant;`, any number. Under loom and shuttle, threads
/// are coroutines on one OS thread, so theirs have to be used; they can't be initialized in a const
/// context, the standard ones should be.
#[macro_export]
macro_rules! per_thread {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $init:expr;)*) => {
        #[cfg(any(loom, shuttle))]
        $crate::thread::model_thread_local! {
            $($(#[$attribute])* static $name: $type = $init;)*
        }
        #[cfg(not(any(loom, shuttle)))]
        std::thread_local! { $($(#[$attribute])* static $name: $type = const { $init };)* }
    };
}

/// Spin hints: the standard library's, or loom's or shuttle's (which yield to the model).
pub mod hint {
    #[cfg(loom)]
    pub use loom::hint::spin_loop;
    #[cfg(shuttle)]
    pub use shuttle::hint::spin_loop;
    #[cfg(not(any(loom, shuttle)))]
    pub use std::hint::spin_loop;
}

#[cfg(shuttle)]
mod watched {
    //! A cell that reports accesses that overlap: shuttle has none of its own.

    use std::cell::Cell;
    use std::time::Duration;

    /// An `UnsafeCell` for shuttle: another thread may be scheduled in the middle of each access,
    /// and one that then touches the cell against the rules panics.
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T> {
        value: std::cell::UnsafeCell<T>,
        /// O: the model's one OS thread: readers inside, or -1 for a writer.
        inside: Cell<isize>,
    }

    // As with the standard cell, who shares it argues for its own `Sync`.

    impl<T> UnsafeCell<T> {
        /// Wraps a value.
        pub const fn new(value: T) -> Self {
            UnsafeCell { value: std::cell::UnsafeCell::new(value), inside: Cell::new(0) }
        }

        /// Calls `f` with a pointer for reading; panics where somebody writes.
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            assert!(self.inside.get() >= 0, "read while another thread writes");
            self.inside.set(self.inside.get() + 1);
            shuttle::thread::sleep(Duration::ZERO); // a scheduling point, and no more
            let result = f(self.value.get());
            self.inside.set(self.inside.get() - 1);
            result
        }

        /// Calls `f` with a pointer for writing; panics where somebody reads or writes.
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            assert!(self.inside.get() == 0, "written while another thread reads or writes");
            self.inside.set(-1);
            shuttle::thread::sleep(Duration::ZERO); // a scheduling point, and no more
            let result = f(self.value.get());
            self.inside.set(0);
            result
        }

        /// Gives the value back.
        pub fn into_inner(self) -> T {
            self.value.into_inner()
        }
    }
}
