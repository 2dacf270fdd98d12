//! The drivers, and the block layer over them, as a user of the crates sees them.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

#[path = "../common/mod.rs"]
mod common;

mod checkpoint;
mod checkpoint_model;
#[cfg(feature = "crypt")]
mod crypt;
#[cfg(feature = "crypt")]
mod crypt_header;
mod drivers;
mod extents;
mod file;
mod file_guards;
mod file_timeouts;
mod inject;
mod mirror;
mod mirror_check;
mod mirror_degraded;
mod mirror_members;
mod mirror_model;
mod mirror_outdated;
mod mirror_record;
mod mirror_replace;
mod nested;
mod null;
mod overlay;
mod overlay_crashes;
mod overlay_whole;
mod partition;
mod requests;
mod workers;
