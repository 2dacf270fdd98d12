//! The asymmetric fences on real threads, with the system's barrier. The ignored test shows that
//! the machine reorders if nothing prevents it, so that a broken pair is caught here. On x86 with
//! several CPUs it does, in 1 to 50 % of the rounds.
#![cfg(not(any(loom, shuttle)))]

mod litmus;

use std::sync::atomic::{Ordering, fence};

use corewise_sync::fence::{heavy, light, prepare};

const ROUNDS: u64 = if cfg!(miri) { 100 } else { 40_000 };

#[test]
fn of_a_frequent_and_a_rare_side_one_sees_the_other() {
    litmus::nothing_is_missed("the pair", ROUNDS, light, heavy);
}

/// Tests the machine and the test above: fails if it doesn't reorder, or the test wouldn't see it.
#[test]
#[ignore = "depends on the machine: run it to see that the other can fail"]
fn this_machine_reorders_if_the_heavy_fence_is_local() {
    prepare();
    let own = || fence(Ordering::SeqCst);
    assert!((0..100).any(|_| litmus::run(light, own).missed != 0));
}
