//! A mutex that inherits priorities: what a spinlock of the kernel is on PREEMPT_RT.

use std::marker::PhantomData;

#[cfg_attr(sim, path = "simulated.rs")]
#[cfg_attr(not(sim), path = "system.rs")]
mod imp;

pub(super) use imp::PiMutex;

/// Holds the mutex until it is dropped.
#[derive(Debug)]
pub(super) struct PiGuard<'m> {
    mutex: &'m PiMutex,
    /// The thread that took it gives it back, no other.
    stays: PhantomData<*const ()>,
}

impl<'m> PiGuard<'m> {
    /// For the thread that has just taken the mutex.
    #[inline]
    fn new(mutex: &'m PiMutex) -> PiGuard<'m> {
        PiGuard { mutex, stays: PhantomData }
    }
}

impl Drop for PiGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.unlock();
    }
}
