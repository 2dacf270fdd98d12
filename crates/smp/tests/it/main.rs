//! Calls, as a user of the crate sees them.

mod any;
mod dump;
mod narrowed;
mod rules;
mod run;
mod stepped_calls;
mod stepped_offline;
mod synchronize;
mod threads;
mod watch;
