//! The backend of product code: the standard library, and the system below it. The system is Linux
//! (`linux/`), or any that the standard library knows (`portable/`).

#[cfg_attr(all(target_os = "linux", not(portable)), path = "linux/mod.rs")]
#[cfg_attr(not(all(target_os = "linux", not(portable))), path = "portable/mod.rs")]
pub(crate) mod system;
#[path = "../untold.rs"]
mod untold;
#[path = "../usual.rs"]
mod usual;
#[path = "../word/mod.rs"]
mod word;

pub use crate::real_per_thread as per_thread;
pub use std::hint::spin_loop;
pub(crate) use std::sync as lock;
pub(crate) use std::sync::atomic;
pub(crate) use std::sync::atomic as aside;
pub(crate) use std::thread;
pub use untold::{computed, reads, writes};
pub(crate) use usual::{EVERY_SCHEDULE, SEQ_CST_IS_WEAK, Witness, constructor, weakened};
pub(crate) use word::{FutexWord, ParkerToken, pair};
pub use word::{SpinLock, SpinLockGuard, Swap};

/// See [`hint::IN_MODEL`](crate::hint::IN_MODEL).
pub(crate) const IN_MODEL: bool = false;

#[doc(hidden)]
#[macro_export]
macro_rules! real_per_thread {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $init:expr;)*) => {
        ::std::thread_local! { $($(#[$attribute])* static $name: $type = const { $init };)* }
    };
}

/// The clock. See [`crate::time`].
pub(crate) mod clock {
    pub(crate) use super::system::clock::{coarse, precise, with_suspends};

    use std::time::Instant;

    #[inline]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }
}

/// Tools for tests of this backend: none beside the standard library.
pub(crate) mod testing {}

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
    /// thread may write meanwhile.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with a pointer for writing. Dereferencing it is the caller's unsafe step: no other
    /// thread may access the value meanwhile.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }

    /// Returns the value.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// Prefetches two lines. See [`hint::prefetch`](crate::hint::prefetch).
#[inline(always)]
pub fn prefetch<T>(shared: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = shared.cast::<i8>();
        // SAFETY: a prefetch of any address is harmless.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = shared;
}

/// Prefetches a line for writing. See [`hint::prefetch_to_write`](crate::hint::prefetch_to_write).
#[inline(always)]
pub fn prefetch_to_write<T>(shared: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: as above; a processor that doesn't know this one does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(shared.cast::<i8>()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = shared;
}
