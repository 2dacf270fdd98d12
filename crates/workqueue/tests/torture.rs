//! The mixed scenario on real threads: for two seconds, or a minute with `COREWISE_LONG`.
#![cfg(not(any(loom, shuttle)))]

#[path = "support/chance.rs"]
mod chance;
mod mixed;

use mixed::{Size, scenario};

#[test]
fn torture_the_rules_hold_on_real_threads() {
    chance::torture(|chance| scenario(chance, Size { actors: 3, acts: 100 }));
}
