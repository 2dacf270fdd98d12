//! On which CPU the calling thread is.

#[cfg(not(any(loom, miri)))]
pub(crate) use corewise_topology::current_cpu;

/// Loom's threads are on no CPU, and Miri doesn't know the system call.
#[cfg(any(loom, miri))]
pub(crate) fn current_cpu() -> Option<u32> {
    None
}
