//! The block layer in thousands of random schedules.
#![cfg(shuttle)]

mod queue;
mod tags;
