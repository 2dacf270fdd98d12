//! The models of the NBD server, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod load;
mod memory;
mod reply;
