//! Devices and drivers that come and go, on real threads: for two seconds, or a minute with
//! `COREWISE_LONG`.
#![cfg(not(any(loom, shuttle)))]

#[path = "../../workqueue/tests/support/chance.rs"]
mod chance;
mod comings;

use comings::{Size, scenario};

#[test]
fn torture_no_supplier_goes_before_its_consumer_whoever_binds_unbinds_adds_and_removes() {
    chance::torture(|chance| scenario(chance, Size { devices: 7, actors: 3, acts: 200 }));
}
