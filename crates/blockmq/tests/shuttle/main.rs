//! The block layer in thousands of random schedules.
#![cfg(shuttle)]

mod device;
mod queue;
mod tags;
