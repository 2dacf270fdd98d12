//! The whole server, its clients and its disks in thousands of random schedules, with crashes:
//! `README.md` says what is simulated, and what has to hold.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

mod client;
mod crashes;
mod disk;
mod event_counts;
mod ledger;
mod stack;
