//! Drivers in thousands of random schedules.
#![cfg(shuttle)]

#[path = "../../../blockmq/tests/shuttle/device.rs"]
mod device;

mod delay;
mod overlay;
