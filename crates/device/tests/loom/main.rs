//! The models of devices, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod counters;
mod deferred;
mod handoff;
mod takeover;
