//! The models of the block layer, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod cache;
mod end;
mod flusher;
mod inboxes;
mod run;
mod tags;
mod timeout;
mod usage;
