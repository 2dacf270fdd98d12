//! Tools for models: proofs that a model can fail, choices by chance, and steps in the wrong order.

use crate::facade::fence::FencePolicy;
use crate::ring::Ring;
use std::ptr::NonNull;

#[allow(unused_imports, unreachable_pub, reason = "only checkers have any")]
pub use crate::facade::backend::testing::*;

/// Appends to a ring with its steps in the wrong order, for models that have to fail. Returns false
/// if the ring is full, or another appender has the tail.
pub fn publish_before_fill<T, F: FencePolicy>(ring: &Ring<T, F>, item: NonNull<T>) -> bool {
    let Some(mut begun) = ring.begin() else { return false };
    let at = begun.next;
    begun.next += 1;
    drop(begun);
    ring.fill(at, item);
    true
}
