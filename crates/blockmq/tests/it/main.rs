//! The block layer and its drivers, as a user of the crate sees them.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

#[path = "../common/mod.rs"]
mod common;

mod atomic_sections;
mod complete;
mod drivers;
mod dropped;
mod durability;
mod extents;
mod file;
mod file_guards;
mod file_timeouts;
mod hand;
mod hotplug;
mod inject;
mod mirror;
mod mirror_check;
mod mirror_degraded;
mod mirror_members;
mod mirror_model;
mod mirror_outdated;
mod mirror_record;
mod mirror_replace;
mod mistakes;
mod nested;
mod null;
mod partition;
mod plug;
mod requests;
mod room;
mod rules;
mod stepped_queue;
mod stepped_sched;
mod stepped_shape;
mod stepped_tags;
mod timeout;
mod whole;
mod workers;
