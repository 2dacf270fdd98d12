//! The models of workqueues, in every interleaving: a file for each protocol.
#![cfg(loom)]

#[path = "../support/bounded.rs"]
mod bounded;
#[path = "../support/counting.rs"]
mod counting;

mod alarm;
mod carry;
mod claim;
mod flush;
mod follow;
mod fork;
mod free;
mod future;
mod limiter;
mod links;
mod pool;
mod take_back;
mod work;
