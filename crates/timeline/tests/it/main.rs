//! Timelines, as a user of the crate sees them.

#[path = "../samples/mod.rs"]
mod samples;

mod pictures;
mod render;
mod what_if;
