//! The models of the primitives, in every interleaving: a file for each protocol.
#![cfg(loom)]

mod bell;
mod completion;
mod counter;
mod epoch;
mod fence;
mod hazard;
mod inbox;
mod lot;
mod ring;
mod signal;
mod spin;
