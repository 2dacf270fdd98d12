//! Tests of machines: live, read from files, made up, and changing.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

#[path = "../support/mod.rs"]
mod support;

mod change;
mod live;
mod machine;
mod machines;
mod refresh;
mod shard_table;
mod synthetic;
mod sysfs;
mod xml;
