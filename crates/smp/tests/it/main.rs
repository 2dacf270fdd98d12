//! Calls, as a user of the crate sees them.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

mod any;
mod dump;
mod narrowed;
mod rules;
mod run;
mod stepped_calls;
mod stepped_offline;
mod support;
mod threads;
mod watch;
