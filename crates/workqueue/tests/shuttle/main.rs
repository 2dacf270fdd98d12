//! Workqueues in thousands of random schedules.
#![cfg(shuttle)]

#[path = "../support/chance.rs"]
mod chance;
#[path = "../mixed/mod.rs"]
mod mixed;
#[path = "../support/trees.rs"]
mod trees;

mod forks;
mod pool;
mod random;
