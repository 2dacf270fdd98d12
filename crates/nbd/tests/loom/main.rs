//! The models of the NBD server, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod edge;
mod load;
mod memory;
mod reply;
mod turn;
