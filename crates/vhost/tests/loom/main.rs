//! The models of the vhost-user server, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod waker;
