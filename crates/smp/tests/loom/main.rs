//! The models of calls, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod abandon;
mod any_run;
mod completion;
mod free_list;
mod offline;
mod push_wake;
mod sleepers;
mod watch;
