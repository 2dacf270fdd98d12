//! Devices, as a user of the crate sees them.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

#[path = "../support/mod.rs"]
mod support;

mod async_probe;
mod async_shutdown;
mod bring_up;
mod letting_go;
mod placement;
mod registry;
mod registry_inside;
mod registry_traps;
mod registry_walks;
mod shutdown;
mod shutdown_hang;
mod side_by_side;
