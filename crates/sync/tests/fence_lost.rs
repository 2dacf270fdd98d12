//! The asymmetric fences if `membarrier` worked and then is refused, as in a sandbox that was
//! entered while they were in use. One process, one test: the refusal is for good.
#![cfg(not(any(loom, shuttle)))]

mod litmus;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use corewise_sync::fence::{FenceKind, heavy, light, prepare, refuse_membarrier};

#[test]
fn a_membarrier_that_is_refused_later_is_replaced_without_a_miss() {
    /// Number of the heavy fence at which the refusal comes, in the middle of a run.
    static FENCES: AtomicU32 = AtomicU32::new(0);
    const REFUSED_AT: u32 = 100;
    let heavy_and_then_refused = || {
        if FENCES.fetch_add(1, Relaxed) == REFUSED_AT {
            refuse_membarrier();
        }
        heavy();
    };
    prepare();
    let rounds = if cfg!(miri) { 100 } else { 40_000 };
    litmus::nothing_is_missed("the change", rounds, light, heavy_and_then_refused);
    assert!(FENCES.load(Relaxed) > REFUSED_AT);
    assert_eq!(prepare(), FenceKind::FullFences);
}
