//! Memory that clients of several front ends share.

use std::fmt::Debug;

/// A bounded amount of memory that clients share for the bytes of their requests.
pub trait MemoryPool: Debug + Send + Sync {
    /// Takes `bytes` if they are free, and no client waits for memory. Any context.
    fn try_take(&self, bytes: u64) -> bool;

    /// Returns bytes that were taken. Any context.
    fn give_back(&self, bytes: u64);
}
