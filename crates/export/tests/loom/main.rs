//! The models of the state that the clients of an export share, in every interleaving: a file for
//! each protocol.
#![cfg(loom)]

mod range_lock;
mod turn;
