//! The asymmetric fences while the kernel takes its time to register the process. One process, one
//! test: it is registered once. (Miri has no `membarrier`, so nothing to wait for.)
#![cfg(not(any(loom, shuttle, miri)))]

mod litmus;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;

use corewise_sync::fence::{heavy, hold_registration, kind, light, prepare};

#[test]
fn a_heavy_fence_waits_for_no_registration_and_misses_nothing_before_and_after_it() {
    /// Number of the heavy fence beside which the kernel answers, in the middle of a run.
    static FENCES: AtomicU32 = AtomicU32::new(0);
    const ANSWERED_AT: u32 = 20_000;
    hold_registration(true);
    heavy();
    assert_eq!(kind(), None, "it was over before the registration");
    let heavy_and_then_registered = || {
        if FENCES.fetch_add(1, Relaxed) == ANSWERED_AT {
            assert_eq!(kind(), None);
            hold_registration(false);
        }
        heavy();
    };
    litmus::nothing_is_missed("the first way", 100_000, light, heavy_and_then_registered);
    assert!(FENCES.load(Relaxed) > ANSWERED_AT);
    while kind().is_none() {
        thread::yield_now();
    }
    assert_eq!(kind(), Some(prepare()), "heavy has had it registered");
    litmus::nothing_is_missed("the way found", 40_000, light, heavy);
}
