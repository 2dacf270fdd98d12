//! How threads wait and order themselves where they can sleep on a word, and the system has a barrier for
//! all of them.

mod futex;
pub(crate) mod pair;
mod parker;
mod swap;

pub(crate) use futex::FutexWord;
pub(crate) use parker::ParkerToken;
pub use swap::Swap;

/// What product code takes: [`Spin`](crate::spin::Spin). Models take the facade's mutex instead: to spin costs
/// them many more schedules, and shows nothing about who uses the lock.
pub type SpinLock<T> = crate::facade::spin::Spin<T>;
/// As [`SpinLock`].
pub type SpinLockGuard<'a, T> = crate::facade::spin::SpinGuard<'a, T>;
