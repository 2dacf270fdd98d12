//! Workqueues in thousands of random schedules.
#![cfg(shuttle)]

#[path = "../mixed/mod.rs"]
mod mixed;

mod pool;
mod random;
