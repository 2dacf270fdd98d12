//! The block layer, as a user of the crate sees it.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

#[path = "../common/mod.rs"]
mod common;

mod atomic_sections;
mod complete;
mod dropped;
mod hand;
mod hotplug;
mod mistakes;
mod plug;
mod remap;
mod room;
mod rules;
mod stepped_queue;
mod stepped_sched;
mod stepped_shape;
mod stepped_tags;
mod timeout;
mod whole;
