//! How threads wait and order themselves in a model: by the checker's locks and fences, which it can follow.

mod futex;
pub(crate) mod pair;
mod parker;
pub(crate) mod system;

pub(crate) use futex::FutexWord;
pub(crate) use parker::ParkerToken;

/// In a model: the mutex.
pub type SpinLock<T> = crate::Mutex<T>;
/// In a model: the mutex' guard.
pub type SpinLockGuard<'a, T> = crate::MutexGuard<'a, T>;
