//! The asymmetric fences in a system that refuses `membarrier` from the start. One process, one
//! test: the refusal is for good.
#![cfg(not(any(loom, shuttle)))]

mod litmus;

use corewise_sync::fence::{FenceKind, heavy, light, prepare, refuse_membarrier};

#[test]
fn where_membarrier_is_refused_both_sides_are_full_fences() {
    refuse_membarrier();
    assert_eq!(prepare(), FenceKind::FullFences);
    let rounds = if cfg!(miri) { 100 } else { 40_000 };
    litmus::nothing_is_missed("the fallback", rounds, light, heavy);
}
