//! The models of the machine, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod machine;
