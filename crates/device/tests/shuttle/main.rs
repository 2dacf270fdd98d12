//! Devices in thousands of random schedules.
#![cfg(shuttle)]

#[path = "../../../workqueue/tests/support/chance.rs"]
mod chance;
#[path = "../comings/mod.rs"]
mod comings;

mod random;
