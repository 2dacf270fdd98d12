//! Devices in thousands of random schedules.
#![cfg(shuttle)]

#[path = "../comings/mod.rs"]
mod comings;

mod random;
