//! The models of the drivers, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod block_locks;
mod checkpoints;
mod lane;
mod legs;
mod regions;
