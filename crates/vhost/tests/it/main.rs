//! The server against a frontend of the crate `vhost` and rings made by hand.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod cloud_hypervisor;
mod commands;
mod device;
mod guest;
mod hostile;
mod life;
mod model;
mod random;
mod recovery;
mod truncation;
