//! The whole server, its clients and its disks in thousands of random schedules, with crashes:
//! `README.md` lists the simulated parts and the rules.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

mod client;
mod crashes;
mod disk;
mod event_counts;
mod ledger;
mod stack;
