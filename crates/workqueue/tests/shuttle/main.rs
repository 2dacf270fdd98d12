//! Workqueues in thousands of random schedules.
#![cfg(shuttle)]

#[path = "../support/chance.rs"]
mod chance;
#[path = "../mixed/mod.rs"]
mod mixed;

mod pool;
mod random;
