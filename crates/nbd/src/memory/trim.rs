//! Memory that requests are done with, back to the system.
//!
//! The buffers of large requests come from the C library's heap, which keeps much of what is freed, a heap for each
//! thread. Nothing may need it again for days.

use corewise_sync::atomic::{AtomicU64, Ordering};

/// The heap isn't looked through for less than this, in bytes.
const WORTH: u64 = 32 << 20;

/// Counts what has been freed.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// A: bytes that were freed since the heap was last looked through. Relaxed: a count.
    bytes: AtomicU64,
}

impl Freed {
    /// So many bytes of the pool were freed. Any context.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives what is free back to the system where that pays: for a client that leaves. May take milliseconds.
    pub(crate) fn give_to_system(&self) {
        if self.bytes.load(Ordering::Relaxed) >= WORTH
            && self.bytes.swap(0, Ordering::Relaxed) >= WORTH
        {
            trim();
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn trim() {
    unsafe extern "C" {
        /// `malloc_trim(3)`.
        safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    malloc_trim(0);
}

/// Other allocators give back by themselves, or have no way to be asked.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}
