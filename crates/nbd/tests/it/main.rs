//! Tests of sessions with the server, by hand-made clients.

#[path = "../common/mod.rs"]
mod common;

mod abuse;
mod access;
mod bounds;
mod checkpoints;
mod clients;
mod drain;
mod extended;
mod handshake;
mod limits;
mod model;
mod rates;
mod remote;
mod remote_hostile;
mod session;
mod shares;
mod structured;
mod unaligned;
