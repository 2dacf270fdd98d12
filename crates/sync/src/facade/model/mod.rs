//! How threads wait and order themselves in a model: by the checker's locks and fences, which it can follow.

mod futex;
mod must_fail;
pub(crate) mod pair;
mod parker;
mod swap;
pub(crate) mod system;
#[path = "../untold.rs"]
mod untold;

pub(crate) use futex::FutexWord;
pub use must_fail::must_fail;
pub(crate) use parker::ParkerToken;
pub use swap::Swap;
pub use untold::{computed, reads, writes};

/// See [`hint::prefetch`](crate::hint::prefetch): nothing in a model.
pub fn prefetch<T>(_shared: *const T) {}

/// As [`prefetch`].
pub fn prefetch_to_write<T>(_shared: *const T) {}

/// In a model: the mutex.
pub type SpinLock<T> = crate::facade::lock::Mutex<T>;
/// In a model: the mutex' guard.
pub type SpinLockGuard<'a, T> = crate::facade::lock::MutexGuard<'a, T>;
