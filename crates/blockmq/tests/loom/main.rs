//! The models of the block layer, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod bell;
mod cache;
mod end;
mod flusher;
mod hotplug;
mod inboxes;
mod lane;
mod legs;
mod regions;
mod run;
mod tags;
mod timeout;
mod usage;
